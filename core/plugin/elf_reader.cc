#include "core/plugin/elf_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace engine {
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

constexpr StatusCode kPlugin = StatusCode::kPlugin;

Status Truncated() {
  return Status::Error(kPlugin, "the file is truncated or damaged");
}

// Whether [offset, offset + bytes) lies in [begin, begin + size), without overflow.
bool Within(uint64_t offset, uint64_t bytes, uint64_t begin, uint64_t size) {
  return offset >= begin && offset - begin <= size && bytes <= size - (offset - begin);
}

}  // namespace

Result<ElfFile> ElfFile::Open(const std::string& path) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) {
    return Status::Error(kPlugin, "the file cannot be read: %s", strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Status::Error(kPlugin, "this is not a regular file");
  ElfFile elf(std::move(file), static_cast<uint64_t>(info.st_size));
  ENGINE_RETURN_IF_ERROR(elf.ReadHeaders());
  return elf;
}

Status ElfFile::ReadHeaders() {
  Elf64_Ehdr header{};
  const uint64_t have = std::min<uint64_t>(size_, sizeof header);
  ENGINE_RETURN_IF_ERROR(ReadAt(0, &header, have));
  if (std::memcmp(header.e_ident, ELFMAG, std::min<uint64_t>(have, SELFMAG)) != 0 || have == 0) {
    return Status::Error(kPlugin, "this is not a shared library (no ELF file)");
  }
  if (have < sizeof header) return Truncated();
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kByteOrder ||
      header.e_machine != kMachine) {
    return Status::Error(kPlugin,
                         "the library was built for another processor (ELF machine %d, %s-bit)",
                         header.e_machine, header.e_ident[EI_CLASS] == ELFCLASS64 ? "64" : "32");
  }
  if (header.e_type != ET_DYN)
    return Status::Error(kPlugin, "this is an ELF file, but not a shared library");
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return Truncated();
  // The section headers are the end of most files: when they are missing, so may be anything.
  const uint64_t sections = uint64_t{header.e_shnum} * header.e_shentsize;
  if (!Within(header.e_shoff, sections, 0, size_)) return Truncated();
  segments_.resize(header.e_phnum);
  ENGINE_RETURN_IF_ERROR(
      ReadAt(header.e_phoff, segments_.data(), segments_.size() * sizeof(Elf64_Phdr)));
  for (const Elf64_Phdr& segment : segments_) {
    // A mapping beyond the end of the file would be a SIGBUS in the dynamic linker.
    if (segment.p_type == PT_LOAD && !Within(segment.p_offset, segment.p_filesz, 0, size_)) {
      return Truncated();
    }
  }
  return {};
}

Result<std::vector<ElfSymbol>> ElfFile::ExportedObjects(std::string_view prefix) const {
  ENGINE_ASSIGN_OR_RETURN(const Tables tables, FindTables());
  ENGINE_ASSIGN_OR_RETURN(const uint64_t count, SymbolCount(tables));
  ENGINE_ASSIGN_OR_RETURN(const auto symbols, ReadArray<Elf64_Sym>(tables.symbols, count));
  ENGINE_ASSIGN_OR_RETURN(const auto strings, ReadArray<char>(tables.strings, tables.string_bytes));
  std::vector<ElfSymbol> found;
  for (const Elf64_Sym& symbol : symbols) {
    if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
    if (symbol.st_name >= strings.size()) return Truncated();
    const char* name = strings.data() + symbol.st_name;
    const std::string_view text(name, strnlen(name, strings.size() - symbol.st_name));
    if (text.substr(0, prefix.size()) != prefix) continue;
    found.push_back({std::string(text), symbol.st_value, symbol.st_size});
  }
  return found;
}

Result<std::vector<std::byte>> ElfFile::Content(const ElfSymbol& symbol) const {
  return ReadArray<std::byte>(symbol.address, symbol.size);
}

Result<ElfFile::Tables> ElfFile::FindTables() const {
  const auto dynamic = std::find_if(segments_.begin(), segments_.end(),
                                    [](const auto& s) { return s.p_type == PT_DYNAMIC; });
  if (dynamic == segments_.end())
    return Status::Error(kPlugin, "the library has no dynamic section");
  ENGINE_ASSIGN_OR_RETURN(
      const auto entries,
      ReadArray<Elf64_Dyn>(dynamic->p_vaddr, dynamic->p_filesz / sizeof(Elf64_Dyn)));
  Tables tables;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_SYMTAB) tables.symbols = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRTAB) tables.strings = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRSZ) tables.string_bytes = entry.d_un.d_val;
    if (entry.d_tag == DT_HASH) tables.hash = entry.d_un.d_ptr;
    if (entry.d_tag == DT_GNU_HASH) tables.gnu_hash = entry.d_un.d_ptr;
  }
  return tables;
}

// ELF states the length of the symbol table only through its hash tables: DT_HASH begins with
// {buckets, symbols}, DT_GNU_HASH must be walked.
Result<uint64_t> ElfFile::SymbolCount(const Tables& tables) const {
  if (tables.hash == 0 && tables.gnu_hash == 0) return Truncated();
  if (tables.hash == 0) return GnuHashSymbolCount(tables.gnu_hash);
  ENGINE_ASSIGN_OR_RETURN(const auto header, ReadArray<uint32_t>(tables.hash, 2));
  return uint64_t{header[1]};
}

// gnu_hash := buckets:u32 first:u32 bloom_words:u32 shift:u32 bloom:u64[bloom_words]
//             bucket:u32[buckets] chain:u32[...]
// A bucket holds the lowest symbol of its chain, chain[i] belongs to symbol first + i, and an odd
// value ends a chain: the chain that begins last ends with the last symbol.
Result<uint64_t> ElfFile::GnuHashSymbolCount(uint64_t address) const {
  ENGINE_ASSIGN_OR_RETURN(const auto header, ReadArray<uint32_t>(address, 4));
  const uint64_t first = header[1];
  const uint64_t bucket_address = address + 16 + uint64_t{header[2]} * 8;
  ENGINE_ASSIGN_OR_RETURN(const auto buckets, ReadArray<uint32_t>(bucket_address, header[0]));
  uint64_t last = 0;
  for (uint32_t bucket : buckets) last = std::max<uint64_t>(last, bucket);
  if (last < first) return first;
  const uint64_t chain_address = bucket_address + buckets.size() * 4;
  for (;; ++last) {
    uint32_t value = 0;
    ENGINE_RETURN_IF_ERROR(ReadAddress(chain_address + (last - first) * 4, &value, sizeof value));
    if (value & 1) return last + 1;
  }
}

Status ElfFile::ReadAt(uint64_t offset, void* out, uint64_t bytes) const {
  if (!Within(offset, bytes, 0, size_)) return Truncated();
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(file_.get(), static_cast<char*>(out) + done, bytes - done,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::Error(kPlugin, "the file cannot be read: %s", strerror(errno));
    if (got == 0) return Truncated();
    done += static_cast<uint64_t>(got);
  }
  return {};
}

Status ElfFile::ReadAddress(uint64_t address, void* out, uint64_t bytes) const {
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type == PT_LOAD && Within(address, bytes, segment.p_vaddr, segment.p_filesz)) {
      return ReadAt(segment.p_offset + (address - segment.p_vaddr), out, bytes);
    }
  }
  return Truncated();
}

template <typename T>
Result<std::vector<T>> ElfFile::ReadArray(uint64_t address, uint64_t count) const {
  if (count > size_ / sizeof(T)) return Truncated();  // before memory is asked for
  std::vector<T> array(count);
  ENGINE_RETURN_IF_ERROR(ReadAddress(address, array.data(), count * sizeof(T)));
  return array;
}

}  // namespace engine
