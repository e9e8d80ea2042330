#include "app/data/augment.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string>
#include <utility>

namespace engine::data {
namespace {

constexpr uint64_t kAugmentStream = 4;  // of the seed, beside those of synthetic data

// How an image is changed.
struct Change {
  int64_t down = 0, right = 0;  // where row and column 0 are taken from; may be negative
  bool flip = false;
};

// In place: row r becomes row r + down, rows and columns outside are zeros. Rows are written in the
// order that reads each before it is overwritten.
void Move(float* plane, int64_t rows, int64_t columns, const Change& change) {
  const int64_t first = std::max<int64_t>(0, -change.right);
  const int64_t last = std::min(columns, columns - change.right);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = change.down >= 0 ? i : rows - 1 - i;
    const int64_t source = row + change.down;
    float* to = plane + row * columns;
    if (source < 0 || source >= rows) {
      std::fill_n(to, columns, 0.0f);
      continue;
    }
    std::memmove(to + first, plane + source * columns + first + change.right,
                 static_cast<size_t>(last - first) * sizeof(float));
    std::fill(to, to + first, 0.0f);
    std::fill(to + last, to + columns, 0.0f);
  }
}

class AugmentedImages final : public DatasetBase {
 public:
  AugmentedImages(std::unique_ptr<Dataset> data, const AugmentOptions& options)
      : data_(std::move(data)), options_(options) {}

  DatasetInfo info() const noexcept override { return data_->info(); }
  Status Open(uint64_t seed) noexcept override { return data_->Open(seed); }

  Status Fill(const FillCall& call) const noexcept override {
    ENGINE_RETURN_IF_ERROR(data_->Fill(call));
    if (call.split != Split::kTrain) return {};
    const auto inputs = info().inputs;
    for (size_t t = 0; t < inputs.size(); ++t) {
      if (inputs[t].content != TensorContent::kImage) continue;
      float* image = static_cast<float*>(call.tensors[t]);
      for (const int64_t index : call.indices) {
        Apply(ChangeOf(call.epoch, index), inputs[t].shape, image);
        image += inputs[t].shape.Count();
      }
    }
    return {};
  }

 private:
  static void Apply(const Change& change, const Shape& shape, float* plane) {
    const int64_t rows = shape[1], columns = shape[2];
    for (int64_t channel = 0; channel < shape[0]; ++channel, plane += rows * columns) {
      if (change.down != 0 || change.right != 0) Move(plane, rows, columns, change);
      for (int64_t row = 0; change.flip && row < rows; ++row) {
        std::reverse(plane + row * columns, plane + (row + 1) * columns);
      }
    }
  }

  // 32 bits for the rows, 31 for the columns and one for the side.
  Change ChangeOf(uint64_t epoch, int64_t index) const {
    const uint64_t bits =
        RandomBits({options_.seed, kAugmentStream, epoch, static_cast<uint64_t>(index)});
    const uint64_t places = 2 * static_cast<uint64_t>(options_.crop_padding) + 1;
    return {
        .down = static_cast<int64_t>((bits & 0xffffffff) % places) - options_.crop_padding,
        .right = static_cast<int64_t>((bits >> 32 & 0x7fffffff) % places) - options_.crop_padding,
        .flip = options_.flip && bits >> 63 != 0};
  }

  const std::unique_ptr<Dataset> data_;
  const AugmentOptions options_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> AugmentImages(std::unique_ptr<Dataset> data,
                                               const AugmentOptions& options) {
  const DatasetInfo info = data->info();
  bool any = false;
  for (const SampleTensor& tensor : info.inputs) {
    if (tensor.content != TensorContent::kImage) continue;
    any = true;
    if (tensor.dtype != DType::kFloat32 || tensor.shape.ndim != 3) {
      return Status::Error(StatusCode::kPlugin,
                           "%s: images must be float32 (channels, rows, columns); this is an error "
                           "of its plugin",
                           std::string(info.name).c_str());
    }
    const int64_t side = std::min(tensor.shape[1], tensor.shape[2]);
    if (options.crop_padding < 0 || options.crop_padding >= side) {
      return Status::Error(StatusCode::kConfig,
                           "data.augment.crop_padding is %d; for images of %" PRId64 " x %" PRId64
                           " it must be 0 to %" PRId64,
                           options.crop_padding, tensor.shape[1], tensor.shape[2], side - 1);
    }
  }
  if (!any) {
    return Status::Error(StatusCode::kConfig,
                         "data.augment is for images, (channels, rows, columns) of numbers; %s has "
                         "none: remove it",
                         std::string(info.name).c_str());
  }
  return std::unique_ptr<Dataset>(std::make_unique<AugmentedImages>(std::move(data), options));
}

}  // namespace engine::data
