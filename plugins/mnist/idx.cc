#include "idx.h"

#include <zlib.h>

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "kit/file.h"

namespace engine::mnist {
namespace {

constexpr int64_t kMaxContentBytes = int64_t{4} << 30;
// The most that a byte of deflate data can stand for (zlib's manual, "Maximum Compression Factor").
constexpr int64_t kMaxDeflateRatio = 1032;

// The uncompressed content of a file. zlib passes plain files through as they are.
class Content {
 public:
  explicit Content(std::string path) : path_(std::move(path)) {}
  ~Content() {
    if (file_) gzclose_r(file_);
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  Status Open() {
    ENGINE_ASSIGN_OR_RETURN(kit::InputFile input, kit::InputFile::Open(path_));
    file_bytes_ = input.size_bytes();
    file_ = gzdopen(input.fd(), "rb");
    if (!file_) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory", path_.c_str());
    }
    input.Release();
    gzbuffer(file_, 1 << 17);
    return {};
  }

  // Reads up to `count` bytes; fewer only at the end of the content.
  Result<int64_t> ReadSome(uint8_t* target, int64_t count) {
    const int got = gzread(file_, target, static_cast<unsigned>(count));
    int error = Z_OK;
    const char* reason = gzerror(file_, &error);
    if (error == Z_BUF_ERROR) {
      return Bad("the compressed file is cut short", offset_ + std::max(got, 0));
    }
    if (got < 0 && error == Z_ERRNO) {
      return Status::Error(StatusCode::kMissingInput, "cannot read '%s': %s", path_.c_str(),
                           reason);
    }
    if (got < 0) return Bad("the compressed file is damaged", offset_);
    offset_ += got;
    return int64_t{got};
  }

  Status ReadAll(uint8_t* target, int64_t count) {
    ENGINE_ASSIGN_OR_RETURN(const int64_t got, ReadSome(target, count));
    return got == count ? Status() : Bad("the file ends too early", offset_);
  }

  // More than the file can hold, however well it is compressed.
  int64_t bound_bytes() const {
    return std::min(kMaxContentBytes, file_bytes_ * (gzdirect(file_) ? 1 : kMaxDeflateRatio));
  }

  Status Bad(const char* what, int64_t offset) const {
    return Status::Error(StatusCode::kBadData, "%s: %s at offset %" PRId64, path_.c_str(), what,
                         offset);
  }

 private:
  const std::string path_;
  gzFile file_ = nullptr;
  int64_t file_bytes_ = 0;
  int64_t offset_ = 0;
};

Status ReadMagic(Content& content, int32_t dimensions) {
  uint8_t magic[4];
  ENGINE_RETURN_IF_ERROR(content.ReadAll(magic, sizeof(magic)));
  if (magic[0] != 0 || magic[1] != 0) return content.Bad("this is no IDX file: bad magic", 0);
  if (magic[2] != 0x08) return content.Bad("the values are not unsigned bytes (0x08)", 2);
  if (magic[3] == dimensions) return {};
  return content.Bad("the number of dimensions is wrong", 3)
      .WithContext("%d instead of %d", magic[3], dimensions);
}

// Extents come from the file: their product is bounded by what the file can hold before anything is
// allocated, and must not overflow on the way there.
Result<Shape> ReadExtents(Content& content, int32_t dimensions) {
  Shape shape;
  int64_t count = 1;
  for (shape.ndim = 0; shape.ndim < dimensions; ++shape.ndim) {
    uint8_t big_endian[4];
    ENGINE_RETURN_IF_ERROR(content.ReadAll(big_endian, sizeof(big_endian)));
    uint32_t extent = 0;
    for (uint8_t byte : big_endian) extent = extent << 8 | byte;
    shape.dims[shape.ndim] = extent;
    if (__builtin_mul_overflow(count, int64_t{extent}, &count) || count > content.bound_bytes()) {
      return content.Bad("the extents say more values than the file can hold",
                         4 + 4 * int64_t{shape.ndim});
    }
  }
  return shape;
}

// By chunks: memory grows with what is there, not with what the header says.
Status ReadValues(Content& content, int64_t count, std::vector<uint8_t>* values) {
  constexpr int64_t kChunkBytes = 1 << 20;
  for (int64_t done = 0; done < count;) {
    const int64_t chunk = std::min(kChunkBytes, count - done);
    values->resize(static_cast<size_t>(done + chunk));
    ENGINE_RETURN_IF_ERROR(content.ReadAll(values->data() + done, chunk));
    done += chunk;
  }
  return {};
}

}  // namespace

Result<IdxArray> ReadIdx(const std::string& path, int32_t dimensions) {
  IdxArray array;
  Content content(path);
  ENGINE_RETURN_IF_ERROR(content.Open());
  ENGINE_RETURN_IF_ERROR(ReadMagic(content, dimensions));
  ENGINE_ASSIGN_OR_RETURN(array.shape, ReadExtents(content, dimensions));
  ENGINE_RETURN_IF_ERROR(ReadValues(content, array.shape.Count(), &array.values));
  // Asking for one byte more also makes zlib check the checksum at the end.
  uint8_t extra = 0;
  ENGINE_ASSIGN_OR_RETURN(const int64_t more, content.ReadSome(&extra, 1));
  if (more == 0) return array;
  return content.Bad("there is more data than the extents say",
                     IdxArray::HeaderBytes(dimensions) + array.shape.Count());
}

}  // namespace engine::mnist
