#include "data_kit/npy.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "data_kit/inflate.h"
#include "kit/file.h"

namespace engine::data_kit {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxExtents = 6;

Status Bad(const std::string& name, const std::string& what) {
  return Status::Error(StatusCode::kBadData, "%s: %s", name.c_str(), what.c_str());
}

// The value of a key of the header: what follows "'KEY':" up to `end`; a shape with its brackets.
std::string_view ValueOf(std::string_view header, std::string_view key) {
  const size_t at = header.find(std::string(1, '\'').append(key).append("'"));
  if (at == header.npos) return {};
  size_t begin = header.find(':', at);
  if (begin == header.npos) return {};
  begin = header.find_first_not_of(' ', begin + 1);
  if (begin == header.npos) return {};
  const size_t end = header.find_first_of(header[begin] == '(' ? ")" : ",}", begin);
  return end == header.npos ? std::string_view() : header.substr(begin, end - begin);
}

// "'<f4'"
// order is '<' little-endian, '>' big-endian or '|' without one; kind 'b' bool, 'i', 'u' or 'f'.
Result<ElementType> ParseType(const std::string& name, std::string_view descr) {
  if (descr.size() == 5) {
    const char order = descr[1], kind = descr[2];
    ElementType type{.size_bytes = static_cast<uint8_t>(descr[3] - '0'),
                     .big_endian = order == '>'};
    const bool size_fits = type.size_bytes == 1 || type.size_bytes == 2 || type.size_bytes == 4 ||
                           type.size_bytes == 8;
    if (kind == 'i') type.kind = ElementType::Kind::kSigned;
    if (kind == 'f') type.kind = ElementType::Kind::kFloat;
    const bool known = kind == 'i' || kind == 'u' || (kind == 'b' && type.size_bytes == 1) ||
                       (kind == 'f' && type.size_bytes > 1);
    if (size_fits && known && (order == '<' || order == '>' || order == '|')) return type;
  }
  return Bad(name, "elements of type " + std::string(descr) +
                       " are not read; save it as integers or floats, with array.astype('<f4')");
}

// "(3, 4"; the product of the extents, at most `limit`, into *count.
Result<std::vector<int64_t>> ParseShape(const std::string& name, std::string_view text,
                                        int64_t limit, int64_t* count) {
  std::vector<int64_t> shape;
  *count = 1;
  text.remove_prefix(std::min<size_t>(1, text.size()));  // the bracket
  while (text.find_first_not_of(" ,") != text.npos) {
    text.remove_prefix(text.find_first_not_of(" ,"));
    int64_t extent = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc() || extent < 0 || shape.size() == kMaxExtents) {
      return Bad(name, "a shape that cannot be, or of more than 6 extents, in its header");
    }
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    shape.push_back(extent);
    if (__builtin_mul_overflow(*count, extent, count)) *count = limit + 1;
  }
  if (shape.empty()) return Bad(name, "a single number, not an array");
  if (*count == 0) return Bad(name, "there are no elements");
  if (*count <= limit) return shape;
  return Bad(name, "its header says more elements than the file has; is it cut short?");
}

// A little-endian number; 0 where it is not inside of the file, so that offsets of a damaged file
// lead to a signature that is not there.
uint64_t Little(std::span<const uint8_t> bytes, uint64_t offset, int size) {
  uint64_t value = 0;
  if (offset > bytes.size() || bytes.size() - offset < static_cast<uint64_t>(size)) return 0;
  for (int i = size; i-- > 0;) value = value << 8 | bytes[offset + static_cast<uint64_t>(i)];
  return value;
}

// The central directory of a ZIP file.
struct ZipDirectory {
  uint64_t offset = 0, entries = 0;
};

// The end record lies at the end, before a comment of at most 65,535 bytes. What does not fit into
// it is in one with 64 bits, which a locator before it points to.
Result<ZipDirectory> FindDirectory(const std::string& path, std::span<const uint8_t> file) {
  constexpr uint64_t kEndBytes = 22, kLocatorBytes = 20, kMaxComment = 65535;
  for (uint64_t back = kEndBytes; back <= std::min<uint64_t>(file.size(), kEndBytes + kMaxComment);
       ++back) {
    const uint64_t at = file.size() - back;
    if (Little(file, at, 4) != 0x06054b50) continue;
    const ZipDirectory found{.offset = Little(file, at + 16, 4),
                             .entries = Little(file, at + 10, 2)};
    if (found.offset != 0xffffffff && found.entries != 0xffff) return found;
    const uint64_t wide = Little(file, at - std::min(at, kLocatorBytes) + 8, 8);
    if (Little(file, wide, 4) != 0x06064b50) break;
    return ZipDirectory{.offset = Little(file, wide + 48, 8),
                        .entries = Little(file, wide + 32, 8)};
  }
  return Bad(path, "no ZIP file, as a .npz is, or one that is cut short");
}

struct ZipEntry {
  uint64_t method = 0, checksum = 0, packed = 0, size = 0, header = 0;
};

// Fields of 32 bits that are all ones are in the extra field 1, in the order of the entry.
ZipEntry ReadEntry(std::span<const uint8_t> file, uint64_t at, uint64_t name_bytes) {
  ZipEntry entry{.method = Little(file, at + 10, 2),
                 .checksum = Little(file, at + 16, 4),
                 .packed = Little(file, at + 20, 4),
                 .size = Little(file, at + 24, 4),
                 .header = Little(file, at + 42, 4)};
  uint64_t extra = at + 46 + name_bytes;
  const uint64_t end = extra + Little(file, at + 30, 2);
  while (extra + 4 <= end && Little(file, extra, 2) != 1) extra += 4 + Little(file, extra + 2, 2);
  extra += 4;
  for (uint64_t* field : {&entry.size, &entry.packed, &entry.header}) {
    if (*field != 0xffffffff || extra + 8 > end) continue;
    *field = Little(file, extra, 8);
    extra += 8;
  }
  return entry;
}

}  // namespace

bool IsNpy(std::span<const uint8_t> bytes) {
  return bytes.size() >= kMagic.size() &&
         std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<const char*>(bytes.data()));
}

bool IsNumpyFile(std::string_view path) {
  return path.ends_with(".npy") || path.ends_with(".npz") || path.find(".npz:") != path.npos;
}

Result<NumberArray> ParseNpy(std::string name, std::span<const uint8_t> bytes,
                             std::shared_ptr<const void> memory) {
  if (!IsNpy(bytes)) return Bad(name, "this is no .npy file of NumPy: bad magic at offset 0");
  const bool short_length = Little(bytes, 6, 1) == 1;
  const uint64_t begin = short_length ? 10 : 12;
  const uint64_t length = Little(bytes, 8, short_length ? 2 : 4);
  if (length == 0 || begin + length > bytes.size()) {
    return Bad(name, "its header, at offset 6, is cut short or of an unknown version");
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + begin, length);
  NumberArray array{.name = std::move(name),
                    .type = {},
                    .shape = {},
                    .elements = bytes.subspan(begin + length),
                    .memory = std::move(memory)};
  ENGINE_ASSIGN_OR_RETURN(array.type, ParseType(array.name, ValueOf(header, "descr")));
  const auto there = static_cast<int64_t>(array.elements.size()) / array.type.size_bytes;
  int64_t count = 0;
  ENGINE_ASSIGN_OR_RETURN(array.shape,
                          ParseShape(array.name, ValueOf(header, "shape"), there, &count));
  // Of one dimension both orders are the same.
  const bool fortran = ValueOf(header, "fortran_order").starts_with("True");
  if (fortran && array.shape.size() > 1) {
    return Bad(array.name,
               "its elements are in Fortran's order; save numpy.ascontiguousarray(array)");
  }
  array.elements = array.elements.first(static_cast<size_t>(count * array.type.size_bytes));
  return array;
}

Result<ZipMember> FindZipMember(const std::string& path, std::span<const uint8_t> file,
                                std::shared_ptr<const void> memory, const std::string& member) {
  ENGINE_ASSIGN_OR_RETURN(const ZipDirectory directory, FindDirectory(path, file));
  std::string names;
  uint64_t at = directory.offset;
  // entry  = 0x02014b50 .. method .. checksum packed size name_bytes extra_bytes comment_bytes .. header
  // name header = 0x04034b50 .. name_bytes extra_bytes name extra content: its sizes may be
  // missing, so those
  //          of the entry count
  for (uint64_t i = 0; i < directory.entries; ++i) {
    const uint64_t name_bytes = Little(file, at + 28, 2);
    if (Little(file, at, 4) != 0x02014b50 || at + 46 + name_bytes > file.size()) {
      return Bad(path, "its directory is damaged at offset " + std::to_string(at));
    }
    const std::string_view name(reinterpret_cast<const char*>(file.data()) + at + 46, name_bytes);
    names += (names.empty() ? "" : ", ") + std::string(name.substr(0, name.rfind(".npy")));
    if (name == member) {
      const ZipEntry entry = ReadEntry(file, at, name_bytes);
      const uint64_t begin = entry.header + 30 + Little(file, entry.header + 26, 2) +
                             Little(file, entry.header + 28, 2);
      if (Little(file, entry.header, 4) != 0x04034b50 || begin > file.size() ||
          file.size() - begin < entry.packed) {
        return Bad(path, "the array is cut short");
      }
      const auto packed = file.subspan(begin, entry.packed);
      if (entry.method == 0) return ZipMember{packed, std::move(memory)};
      if (entry.method != 8) return Bad(path, "compressed in a way that is not read");
      ENGINE_ASSIGN_OR_RETURN(std::vector<uint8_t> content, Inflate(packed, Packing::kRaw, path));
      // What it says that it holds is compared with what came out.
      const auto kept = std::make_shared<const std::vector<uint8_t>>(std::move(content));
      if (kept->size() != entry.size || crc32_z(0, kept->data(), kept->size()) != entry.checksum) {
        return Bad(path, "the compressed file is damaged");
      }
      return ZipMember{*kept, kept};
    }
    at += 46 + name_bytes + Little(file, at + 30, 2) + Little(file, at + 32, 2);
  }
  return Bad(path, "there is no such array; there are " + names);
}

Result<NumberArray> OpenNpy(const std::string& path, const std::string& array) {
  const size_t colon = path.find(".npz:");
  const bool packed = colon != path.npos || path.ends_with(".npz");
  const std::string file_name = colon == path.npos ? path : path.substr(0, colon + 4);
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile opened, kit::MappedFile::Open(file_name));
  const auto file = std::make_shared<const kit::MappedFile>(std::move(opened));
  if (!packed) return ParseNpy(path, file->bytes(), file);
  const std::string member = colon == path.npos ? array : path.substr(colon + 5);
  const std::string name = file_name + ":" + member;
  ENGINE_ASSIGN_OR_RETURN(const ZipMember found,
                          FindZipMember(name, file->bytes(), file, member + ".npy"));
  return ParseNpy(name, found.content, found.memory);
}

}  // namespace engine::data_kit
