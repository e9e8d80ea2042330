#include "app/run/sample_image.h"

#include <algorithm>
#include <boost/archive/iterators/base64_from_binary.hpp>
#include <boost/archive/iterators/transform_width.hpp>
#include <cmath>

namespace engine::run {
namespace {

void Append(std::string* bytes, uint32_t value, int count) {
  for (int i = 0; i < count; ++i) *bytes += static_cast<char>(value >> 8 * i);
}

// BITMAPFILEHEADER and BITMAPINFOHEADER, then rows from the lowest to the highest of blue, green, red,
// each filled up to a multiple of 4 bytes.
std::string Bitmap(const float* pixels, int64_t channels, int64_t rows, int64_t columns) {
  constexpr uint32_t kHeaders = 54;
  const int64_t fill = -3 * columns & 3, plane = rows * columns;
  const auto [low, high] = std::minmax_element(pixels, pixels + channels * plane);
  const float scale = *high > *low ? 255 / (*high - *low) : 0;
  std::string bytes = "BM";
  const auto size = static_cast<uint32_t>(rows * (3 * columns + fill));
  for (const uint32_t value :
       {kHeaders + size, 0u, kHeaders, 40u, static_cast<uint32_t>(columns),
        static_cast<uint32_t>(rows), 24u << 16 | 1u, 0u, size, 0u, 0u, 0u, 0u}) {
    Append(&bytes, value, 4);
  }
  for (int64_t row = rows - 1; row >= 0; --row) {
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      for (int64_t channel = 2; channel >= 0; --channel) {
        const float value = pixels[std::min(channel, channels - 1) * plane + i];
        bytes += static_cast<char>(std::lround((value - *low) * scale));
      }
    }
    Append(&bytes, 0, static_cast<int>(fill));
  }
  return bytes;
}

std::string Base64(const std::string& bytes) {
  namespace iterators = boost::archive::iterators;
  using Digit =
      iterators::base64_from_binary<iterators::transform_width<std::string::const_iterator, 6, 8>>;
  std::string text(Digit(bytes.begin()), Digit(bytes.end()));
  return text.append((3 - bytes.size() % 3) % 3, '=');
}

}  // namespace

Result<std::string> SampleImage(train::BatchSource& data, Split split, int64_t index) {
  const SampleTensor input = data.info().inputs[0];
  const int64_t* const dims = input.shape.dims;
  if (input.dtype != DType::kFloat32 || input.shape.ndim != 3 || (dims[0] != 1 && dims[0] != 3)) {
    return std::string();
  }
  ENGINE_ASSIGN_OR_RETURN(const auto stream, data.Batches({.split = split, .first_step = index}));
  ENGINE_ASSIGN_OR_RETURN(const train::Batch* batch, stream->Next());
  return "data:image/bmp;base64," +
         Base64(Bitmap(static_cast<const float*>(batch->input), dims[0], dims[1], dims[2]));
}

}  // namespace engine::run
