// mnist: images with one of ten classes, in the files of MNIST and of the sets made in its image.
//
// Samples of (1, rows, columns) float32: (value / 255 - 0.1307) / 0.3081, that is with mean 0 and
// standard deviation 1 over the training images of MNIST.
#include <array>
#include <cinttypes>
#include <string>

#include "engine/plugin.h"
#include "idx.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"

namespace engine::mnist {
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

Status CheckLabels(const std::string& path, const IdxArray& labels) {
  for (size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] < kClasses) continue;
    return Status::Error(
        StatusCode::kBadData, "%s: the label at offset %" PRId64 " is %d; the classes are 0 to 9",
        path.c_str(), IdxArray::HeaderBytes(1) + static_cast<int64_t>(i), labels.values[i]);
  }
  return {};
}

Status Load(const std::string& images_path, const std::string& labels_path, LabelledImages* data) {
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
  return CheckLabels(labels_path, data->labels);
}

class Mnist final : public kit::ReadDataset {
 public:
  explicit Mnist(const Options& options)
      : ReadDataset("mnist " + std::string(options.String("images")),
                    {.name = "image", .shape = {}, .content = TensorContent::kImage},
                    {.name = "label", .shape = {}, .dtype = DType::kInt32, .classes = kClasses}),
        images_(options.String("images")),
        labels_(options.String("labels")),
        eval_images_(options.String("eval_images")),
        eval_labels_(options.String("eval_labels")),
        holdout_(options.Float("holdout")) {
    knows_samples_ = false;  // their size is in the files
  }

  Status Fill(const FillCall& call) const noexcept override {
    const bool train = call.split == Split::kTrain, shared = eval_images_.empty();
    const LabelledImages& from = train || shared ? data_ : eval_data_;
    const int64_t first = !train && shared ? train_samples_ : 0;
    const int64_t pixels = input_.shape.Count();
    auto* out = static_cast<float*>(call.tensors[0]);
    auto* label = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const uint8_t* image = from.images.values.data() + (first + index) * pixels;
      for (int64_t i = 0; i < pixels; ++i) {
        out[i] = (static_cast<float>(image[i]) / 255.0f - kMean) / kDeviation;
      }
      out += pixels;
      *label++ = from.labels.values[static_cast<size_t>(first + index)];
    }
    return {};
  }

 private:
  // What is held out are the last of the images, unless it has files of its own.
  Status Read() override {
    ENGINE_RETURN_IF_ERROR(Load(images_, labels_, &data_));
    if (eval_images_.empty()) {
      held_out_samples_ = kit::HoldoutCount(data_.size(), holdout_);
    } else {
      ENGINE_RETURN_IF_ERROR(Load(eval_images_, eval_labels_, &eval_data_));
      if (!(eval_data_.ImageShape() == data_.ImageShape())) {
        return Status::Error(StatusCode::kBadData,
                             "%s: its images, by the extents at offset 8, have another size than "
                             "those of %s",
                             eval_images_.c_str(), images_.c_str());
      }
      held_out_samples_ = eval_data_.size();
    }
    train_samples_ = data_.size() - (eval_images_.empty() ? held_out_samples_ : 0);
    if (train_samples_ == 0) {
      return Status::Error(StatusCode::kBadData,
                           "%s: its %" PRId64 " images are all held out; lower data.mnist.holdout",
                           images_.c_str(), data_.size());
    }
    input_.shape = data_.ImageShape();
    kit::Digest digest;
    digest.Add(data_.images.values.data(),
               static_cast<size_t>(train_samples_ * input_.shape.Count()));
    digest.Add(data_.labels.values.data(), static_cast<size_t>(train_samples_));
    digest_ = digest.Text();
    knows_samples_ = true;
    return {};
  }

  // Constant after Open.
  const std::string images_, labels_, eval_images_, eval_labels_;
  const double holdout_;
  LabelledImages data_, eval_data_;
};

StatusValue Create(Host&, const Options& options, Object** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckHoldout("data.mnist.holdout", options.Float("holdout")));
  if (options.String("eval_images").empty() != options.String("eval_labels").empty()) {
    return Status::Error(StatusCode::kConfig,
                         "data.mnist needs both eval_images and eval_labels, or none of them");
  }
  return kit::Make<Mnist>(out, options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "mnist",
     .version = "1.0.0",
     .kind = PluginKind::kDataset,
     .doc = "images and labels in IDX files, plain or gzip",
     .create = Create},
    NoOps(),
    std::array{
        kit::PathOption("images", kit::Path::kRequired, "file of images to train on"),
        kit::PathOption("labels", kit::Path::kRequired, "file of their labels"),
        kit::PathOption("eval_images", kit::Path::kOptional, "file of images to hold out"),
        kit::PathOption("eval_labels", kit::Path::kOptional, "file of their labels"),
        kit::FloatOption(
            "holdout", "0.1", 0, 1,
            "without eval_images: the share of the images, at their end, that is held out")});

}  // namespace engine::mnist
