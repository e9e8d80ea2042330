#include "core/data/mnist.h"

#include <cinttypes>
#include <memory>
#include <utility>

#include "app/checkpoint/digest.h"
#include "core/data/holdout.h"
#include "core/data/idx.h"

namespace engine {
namespace {

constexpr int64_t kClasses = 10;
constexpr float kMean = 0.1307f;
constexpr float kDeviation = 0.3081f;

struct LabelledImages {
  IdxArray images;
  IdxArray labels;

  int64_t size() const { return images.shape[0]; }
  Shape ImageShape() const { return {1, images.shape[1], images.shape[2]}; }
};

// The samples [begin, begin + size) of the images, which may be shared with another dataset.
class MnistDataset final : public Dataset {
 public:
  MnistDataset(std::shared_ptr<const LabelledImages> data, const std::string& path, int64_t begin,
               int64_t size)
      : data_(std::move(data)), begin_(begin), image_bytes_(data_->ImageShape().Count()) {
    info_.name = "mnist " + path;
    info_.size = size;
    info_.input_shape = data_->ImageShape();
    info_.input_dtype = DType::kFloat32;
    info_.classes = kClasses;
    Digest digest;
    digest.Add(data_->images.values.data() + begin * image_bytes_,
               static_cast<size_t>(size * image_bytes_));
    digest.Add(data_->labels.values.data() + begin, static_cast<size_t>(size));
    info_.digest = digest.Text();
  }

  const DatasetInfo& info() const override { return info_; }

  Status Get(uint64_t, int64_t index, void* input, int32_t* target) const override {
    const uint8_t* image = data_->images.values.data() + (begin_ + index) * image_bytes_;
    float* out = static_cast<float*>(input);
    for (int64_t i = 0; i < image_bytes_; ++i) {
      out[i] = (static_cast<float>(image[i]) / 255.0f - kMean) / kDeviation;
    }
    *target = data_->labels.values[static_cast<size_t>(begin_ + index)];
    return {};
  }

 private:
  const std::shared_ptr<const LabelledImages> data_;
  const int64_t begin_;
  const int64_t image_bytes_;
  DatasetInfo info_;
};

Status CheckLabels(const std::string& path, const IdxArray& labels) {
  for (size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] < kClasses) continue;
    return Status::Error(
        StatusCode::kBadData, "%s: the label at offset %" PRId64 " is %d; the classes are 0 to 9",
        path.c_str(), IdxArray::HeaderBytes(1) + static_cast<int64_t>(i), labels.values[i]);
  }
  return {};
}

Result<std::shared_ptr<const LabelledImages>> Load(const std::string& images_path,
                                                   const std::string& labels_path) {
  auto data = std::make_shared<LabelledImages>();
  ENGINE_ASSIGN_OR_RETURN(data->images, ReadIdx(images_path, 3));
  ENGINE_ASSIGN_OR_RETURN(data->labels, ReadIdx(labels_path, 1));
  if (data->images.values.empty()) {
    return Status::Error(StatusCode::kBadData,
                         "%s: there are no images, by the extents at offset 4",
                         images_path.c_str());
  }
  if (data->size() != data->labels.shape[0]) {
    return Status::Error(
        StatusCode::kBadData,
        "%s: %" PRId64 " labels, by the extent at offset 4, for the %" PRId64 " images of %s",
        labels_path.c_str(), data->labels.shape[0], data->size(), images_path.c_str());
  }
  ENGINE_RETURN_IF_ERROR(CheckLabels(labels_path, data->labels));
  return std::shared_ptr<const LabelledImages>(std::move(data));
}

Status CheckOptions(const MnistOptions& options) {
  if (options.images.empty() || options.labels.empty()) {
    return Status::Error(StatusCode::kConfig,
                         "data.mnist needs both images and labels: the paths of two IDX files");
  }
  if (options.eval_images.empty() != options.eval_labels.empty()) {
    return Status::Error(StatusCode::kConfig,
                         "data.mnist needs both eval_images and eval_labels, or none of them");
  }
  return CheckHoldout("data.mnist.holdout", options.holdout);
}

}  // namespace

Result<DatasetPair> OpenMnist(const MnistOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  ENGINE_ASSIGN_OR_RETURN(const auto data, Load(options.images, options.labels));
  DatasetPair pair;
  if (!options.eval_images.empty()) {
    ENGINE_ASSIGN_OR_RETURN(const auto held_out, Load(options.eval_images, options.eval_labels));
    if (!(held_out->ImageShape() == data->ImageShape())) {
      return Status::Error(StatusCode::kBadData,
                           "%s: its images, by the extents at offset 8, have another size than "
                           "those of %s",
                           options.eval_images.c_str(), options.images.c_str());
    }
    pair.train = std::make_unique<MnistDataset>(data, options.images, 0, data->size());
    pair.eval = std::make_unique<MnistDataset>(held_out, options.eval_images, 0, held_out->size());
    return pair;
  }
  const int64_t train = data->size() - HoldoutCount(data->size(), options.holdout);
  if (train == 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s: its %" PRId64 " images are all held out; lower data.mnist.holdout",
                         options.images.c_str(), data->size());
  }
  pair.train = std::make_unique<MnistDataset>(data, options.images, 0, train);
  pair.eval = std::make_unique<MnistDataset>(data, options.images, train, data->size() - train);
  return pair;
}

}  // namespace engine
