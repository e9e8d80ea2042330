// Small arrays in NumPy's files, as numpy.save and numpy.savez write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine::test {

template <typename T>
std::string NpyBytes(const std::string& type, const std::string& shape,
                     const std::vector<T>& elements, const std::string& fortran = "False") {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  header.resize((10 + header.size()) / 64 * 64 + 53, ' ');
  header += '\n';
  std::string bytes = std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size() & 0xff) +
                      static_cast<char>(header.size() >> 8) + header;
  bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
  return bytes;
}

inline void AppendLittle(std::string& to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) to += static_cast<char>(value);
}

// A member of a ZIP file, packed with method 0 (stored) or 8 (raw deflate), `size` bytes when
// unpacked.
struct ZipContent {
  std::string name, packed;
  int method = 0;
  size_t size = 0;
  std::string checksum = std::string(4, '\0');  // compared of what is packed alone
};

inline std::string ZipBytes(const std::vector<ZipContent>& members) {
  std::string bytes, directory;
  for (const ZipContent& member : members) {
    const size_t offset = bytes.size();
    const auto fields = [&](std::string& to) {  // what both headers have
      AppendLittle(to, 20, 2);
      AppendLittle(to, 0, 2);
      AppendLittle(to, static_cast<uint64_t>(member.method), 2);
      AppendLittle(to, 0, 4);  // time
      to += member.checksum;
      AppendLittle(to, member.packed.size(), 4);
      AppendLittle(to, member.size, 4);
      AppendLittle(to, member.name.size(), 2);
      AppendLittle(to, 0, 2);
    };
    AppendLittle(bytes, 0x04034b50, 4);
    fields(bytes);
    bytes += member.name + member.packed;
    AppendLittle(directory, 0x02014b50, 4);
    AppendLittle(directory, 20, 2);
    fields(directory);
    AppendLittle(directory, 0, 10);
    AppendLittle(directory, offset, 4);
    directory += member.name;
  }
  const size_t begin = bytes.size();
  bytes += directory;
  AppendLittle(bytes, 0x06054b50, 4);
  AppendLittle(bytes, 0, 4);
  AppendLittle(bytes, members.size(), 2);
  AppendLittle(bytes, members.size(), 2);
  AppendLittle(bytes, directory.size(), 4);
  AppendLittle(bytes, begin, 4);
  AppendLittle(bytes, 0, 2);
  return bytes;
}

}  // namespace engine::test
