// The exported symbols of an ELF64 shared library, read from its file: nothing is mapped, linked
// or run.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::plugins {

struct ElfSymbol {
  std::string name;
  Elf64_Sym entry;
};

// Goes by the section headers, which every linker writes and strip(1) keeps. No number of the file
// is trusted: every read is checked against the file's size. Errors are kPlugin, one clause without
// the file's name.
class ElfFile {
 public:
  // Refuses what is no regular file, no ELF, of another class, byte order or machine, no shared
  // library, or shorter than its headers say.
  static Result<ElfFile> Open(const std::string& path);

  // Defined data symbols whose name starts with `prefix`.
  Result<std::vector<ElfSymbol>> ExportedObjects(std::string_view prefix) const;

  // The initial content of a symbol.
  Result<std::vector<std::byte>> Content(const ElfSymbol& symbol) const;

 private:
  ElfFile(kit::UniqueFd file, uint64_t size) : file_(std::move(file)), size_(size) {}

  Status ReadHeaders();
  // `count` of T at `offset` of the file.
  template <typename T>
  Result<std::vector<T>> Read(uint64_t offset, uint64_t count) const;

  kit::UniqueFd file_;
  uint64_t size_;
  std::vector<Elf64_Shdr> sections_;
};

}  // namespace engine::plugins
