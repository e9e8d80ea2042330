#include "data_kit/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

namespace engine::data_kit {
namespace {

constexpr size_t kFirstBytes = size_t{1} << 16;

Status Bad(const std::string& path, const char* what, size_t offset) {
  return Status::Error(StatusCode::kBadData, "%s: %s at offset %zu", path.c_str(), what, offset);
}

}  // namespace

Result<std::vector<uint8_t>> Inflate(std::span<const uint8_t> packed, Packing packing,
                                     const std::string& path) {
  constexpr int kWindow = 15, kGzipFormat = 16;
  z_stream stream{};
  if (inflateInit2(&stream, packing == Packing::kGzip ? kWindow + kGzipFormat : -kWindow) != Z_OK) {
    return Status::Error(StatusCode::kResourceExhausted, "%s: no memory", path.c_str());
  }
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> ended(&stream, inflateEnd);
  constexpr size_t kMost = size_t{1} << 30;  // of one call: zlib counts in 32 bits
  std::vector<uint8_t> content(kFirstBytes);
  size_t done = 0;
  // Ends with a stream that is complete, or an error: each turn reads input, or makes room for
  // output.
  for (;;) {
    stream.next_in = const_cast<uint8_t*>(packed.data());
    stream.avail_in = static_cast<uInt>(std::min(packed.size(), kMost));
    stream.next_out = content.data() + done;
    stream.avail_out = static_cast<uInt>(std::min(content.size() - done, kMost));
    const int result = inflate(&stream, Z_NO_FLUSH);
    packed = packed.subspan(static_cast<size_t>(stream.next_in - packed.data()));
    done = static_cast<size_t>(stream.next_out - content.data());
    if (result == Z_STREAM_END) {
      if (packing == Packing::kRaw || !IsGzip(packed)) break;
      if (inflateReset(&stream) != Z_OK) return Bad(path, "the compressed file is damaged", done);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return Bad(path, "the compressed file is damaged", done);
    } else if (packed.empty() && stream.avail_out > 0) {
      return Bad(path, "the compressed file is cut short", done);
    }
    if (done < content.size()) continue;
    if (done >= static_cast<size_t>(kMaxInflatedBytes)) {
      return Bad(path, "more than 4 GiB, the limit of compressed files, come out", done);
    }
    content.resize(2 * content.size());
  }
  content.resize(done);
  return content;
}

}  // namespace engine::data_kit
