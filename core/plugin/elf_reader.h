// The exported symbols of an ELF64 shared library, read from its file: nothing is mapped, linked
// or run.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin/file_descriptor.h"
#include "engine/status.h"

namespace engine {

struct ElfSymbol {
  std::string name;
  uint64_t address = 0;
  uint64_t size = 0;
};

// Follows what the dynamic linker follows (program headers, PT_DYNAMIC, its hash and symbol
// tables), so that files without section headers work too. No number of the file is trusted: every
// read is checked against the file's size and its segments. Errors are kPlugin, one clause without
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
  ElfFile(FileDescriptor file, uint64_t size) : file_(std::move(file)), size_(size) {}

  struct Tables {
    uint64_t symbols = 0, strings = 0, string_bytes = 0, hash = 0, gnu_hash = 0;  // addresses
  };

  Status ReadHeaders();
  Result<Tables> FindTables() const;
  Result<uint64_t> SymbolCount(const Tables& tables) const;
  Result<uint64_t> GnuHashSymbolCount(uint64_t address) const;
  Status ReadAt(uint64_t offset, void* out, uint64_t bytes) const;
  // Of an address of the loaded library, within the part of one segment that the file holds.
  Status ReadAddress(uint64_t address, void* out, uint64_t bytes) const;
  template <typename T>
  Result<std::vector<T>> ReadArray(uint64_t address, uint64_t count) const;

  FileDescriptor file_;
  uint64_t size_;
  std::vector<Elf64_Phdr> segments_;
};

}  // namespace engine
