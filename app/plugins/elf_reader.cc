// What is read of a file, by offsets from its beginning:
//
//   0          Elf64_Ehdr
//   e_phoff    Elf64_Phdr[e_phnum]     PT_LOAD: the dynamic linker maps [p_offset, + p_filesz)
//   e_shoff    Elf64_Shdr[e_shnum]
//   sh_offset  of a section SHT_DYNSYM: Elf64_Sym[sh_size / 24]; sh_link is the section with their
//              names, which end in a NUL
//
// The bytes of a symbol are at sh_offset + (st_value - sh_addr) of the section st_shndx. The file
// may change while it is read: what is read then is wrong, but stays within its buffers, and the
// header is compared again once the library is loaded.

#include "app/plugins/elf_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace engine::plugins {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "name the ELF machine of this processor"
#endif
constexpr unsigned char kByteOrder =
    std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;

constexpr StatusCode kBadFile = StatusCode::kPlugin;

Status Truncated() {
  return Status::Error(kBadFile, "the file is truncated or damaged");
}

}  // namespace

Result<ElfFile> ElfFile::Open(const std::string& path) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  kit::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) {
    return Status::Error(kBadFile, "the file cannot be read: %s", strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Status::Error(kBadFile, "this is not a regular file");
  ElfFile elf(std::move(file), static_cast<uint64_t>(info.st_size));
  ENGINE_RETURN_IF_ERROR(elf.ReadHeaders());
  return elf;
}

Status ElfFile::ReadHeaders() {
  const auto magic = Read<char>(0, SELFMAG);
  if (!magic.ok() || std::memcmp(magic->data(), ELFMAG, SELFMAG) != 0) {
    return Status::Error(kBadFile, "this is not a shared library (no ELF file)");
  }
  ENGINE_ASSIGN_OR_RETURN(const auto headers, Read<Elf64_Ehdr>(0, 1));
  const Elf64_Ehdr& header = headers[0];
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kByteOrder ||
      header.e_machine != kMachine) {
    return Status::Error(kBadFile,
                         "the library was built for another processor (ELF machine %d, %s-bit)",
                         header.e_machine, header.e_ident[EI_CLASS] == ELFCLASS64 ? "64" : "32");
  }
  if (header.e_type != ET_DYN) {
    return Status::Error(kBadFile, "this is an ELF file, but not a shared library");
  }
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_shentsize != sizeof(Elf64_Shdr)) {
    return Truncated();
  }
  // The section headers are the end of most files: when they are missing, so may be anything.
  ENGINE_ASSIGN_OR_RETURN(sections_, Read<Elf64_Shdr>(header.e_shoff, header.e_shnum));
  ENGINE_ASSIGN_OR_RETURN(const auto segments, Read<Elf64_Phdr>(header.e_phoff, header.e_phnum));
  for (const Elf64_Phdr& segment : segments) {
    // A mapping beyond the end of the file would be a SIGBUS in the dynamic linker.
    if (segment.p_type == PT_LOAD &&
        (segment.p_offset > size_ || segment.p_filesz > size_ - segment.p_offset)) {
      return Truncated();
    }
  }
  return {};
}

Result<std::vector<ElfSymbol>> ElfFile::ExportedObjects(std::string_view prefix) const {
  std::vector<ElfSymbol> found;
  for (const Elf64_Shdr& section : sections_) {
    if (section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_link >= sections_.size()) return Truncated();
    const Elf64_Shdr& names = sections_[section.sh_link];
    ENGINE_ASSIGN_OR_RETURN(const auto strings, Read<char>(names.sh_offset, names.sh_size));
    ENGINE_ASSIGN_OR_RETURN(
        const auto symbols,
        Read<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym)));
    for (const Elf64_Sym& symbol : symbols) {
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
      if (symbol.st_name >= strings.size()) return Truncated();
      const char* name = strings.data() + symbol.st_name;
      const std::string_view text(name, strnlen(name, strings.size() - symbol.st_name));
      if (text.starts_with(prefix)) found.push_back({std::string(text), symbol});
    }
  }
  return found;
}

Result<std::vector<std::byte>> ElfFile::Content(const ElfSymbol& symbol) const {
  const Elf64_Sym& entry = symbol.entry;
  if (entry.st_shndx >= sections_.size()) return Truncated();
  const Elf64_Shdr& section = sections_[entry.st_shndx];
  const uint64_t into = entry.st_value - section.sh_addr;
  if (section.sh_type != SHT_PROGBITS || into > section.sh_size ||
      entry.st_size > section.sh_size - into || section.sh_offset > size_) {
    return Truncated();
  }
  return Read<std::byte>(section.sh_offset + into, entry.st_size);
}

template <typename T>
Result<std::vector<T>> ElfFile::Read(uint64_t offset, uint64_t count) const {
  // Before memory is asked for.
  if (offset > size_ || count > (size_ - offset) / sizeof(T)) return Truncated();
  std::vector<T> array(count);
  auto* const out = reinterpret_cast<char*>(array.data());
  for (uint64_t done = 0; done < count * sizeof(T);) {
    const ssize_t got =
        pread(file_.get(), out + done, count * sizeof(T) - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::Error(kBadFile, "the file cannot be read: %s", strerror(errno));
    if (got == 0) return Truncated();
    done += static_cast<uint64_t>(got);
  }
  return array;
}

}  // namespace engine::plugins
