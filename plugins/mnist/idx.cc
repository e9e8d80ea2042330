#include "idx.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "data_kit/inflate.h"
#include "kit/file.h"

namespace engine::mnist {
namespace {

using data_kit::ElementType;
using data_kit::NumberArray;

Status Bad(const std::string& path, const char* what, int64_t offset) {
  return Status::Error(StatusCode::kBadData, "%s: %s at offset %" PRId64, path.c_str(), what,
                       offset);
}

// False for an unknown one.
bool ReadType(uint8_t code, ElementType* type) {
  using Kind = ElementType::Kind;
  constexpr struct {
    uint8_t code;
    ElementType type;
  } kTypes[] = {{0x08, {Kind::kUnsigned, 1, true}}, {0x09, {Kind::kSigned, 1, true}},
                {0x0b, {Kind::kSigned, 2, true}},   {0x0c, {Kind::kSigned, 4, true}},
                {0x0d, {Kind::kFloat, 4, true}},    {0x0e, {Kind::kFloat, 8, true}}};
  for (const auto& known : kTypes) {
    if (known.code != code) continue;
    *type = known.type;
    return true;
  }
  return false;
}

Result<NumberArray> Parse(const std::string& path, std::span<const uint8_t> content, int32_t least,
                          int32_t most) {
  NumberArray array;
  array.name = path;
  const auto size = static_cast<int64_t>(content.size());
  if (size < 4) return Bad(path, "the file ends too early", size);
  if (content[0] != 0 || content[1] != 0) return Bad(path, "this is no IDX file: bad magic", 0);
  if (!ReadType(content[2], &array.type)) return Bad(path, "the type of its values is unknown", 2);
  const int32_t dimensions = content[3];
  if (dimensions < least || dimensions > most) {
    return Status::Error(StatusCode::kBadData,
                         "%s: the number of dimensions is wrong at offset 3: %d instead of %d%s",
                         path.c_str(), dimensions, least, least < most ? " to 4" : "");
  }
  const int64_t header = HeaderBytes(dimensions);
  if (size < header) return Bad(path, "the file ends too early", size);
  int64_t extents[4];
  data_kit::ReadElements({ElementType::Kind::kUnsigned, 4, true}, content.data() + 4, dimensions,
                         extents);
  // Extents come from the file: their product must be what is there, and not overflow on the way.
  int64_t bytes = array.type.size_bytes;
  const bool is_empty = size == header && std::count(extents, extents + dimensions, 0) > 0;
  for (int32_t i = 0; i < dimensions; ++i) {
    array.shape.push_back(extents[i]);
    if (is_empty) continue;
    if (__builtin_mul_overflow(bytes, extents[i], &bytes) || bytes > size - header) {
      return Bad(path, "the extents say more values than the file can hold", 4 + 4 * int64_t{i});
    }
  }
  if (!is_empty && bytes != size - header) {
    return Bad(path, "there is more data than the extents say", header + bytes);
  }
  array.elements = content.subspan(static_cast<size_t>(header));
  return array;
}

}  // namespace

Result<NumberArray> ReadIdx(const std::string& path, int32_t least, int32_t most) {
  ENGINE_ASSIGN_OR_RETURN(kit::MappedFile mapped, kit::MappedFile::Open(path));
  const auto file = std::make_shared<const kit::MappedFile>(std::move(mapped));
  std::span<const uint8_t> content = file->bytes();
  std::shared_ptr<const void> memory = file;
  if (data_kit::IsGzip(content)) {
    ENGINE_ASSIGN_OR_RETURN(std::vector<uint8_t> inflated,
                            data_kit::Inflate(content, data_kit::Packing::kGzip, path));
    const auto kept = std::make_shared<const std::vector<uint8_t>>(std::move(inflated));
    content = *kept;
    memory = kept;
  }
  ENGINE_ASSIGN_OR_RETURN(NumberArray array, Parse(path, content, least, most));
  array.memory = std::move(memory);
  return array;
}

}  // namespace engine::mnist
