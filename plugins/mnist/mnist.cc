// mnist: images, or rows of numbers, with classes, in the files of MNIST and of the sets made in
// its image.
//
// Samples of images of three dimensions are (1, rows, columns); of four (channels, rows, columns),
// where the files have channels first, or last if the last extent is at most 4 and the second is
// more; of two they are rows of numbers. uint8 are divided by 255 and, by default, normalised as
// MNIST is, with (x - 0.1307) / 0.3081 for images of one channel; other types are numbers as they
// are.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <string>
#include <utility>
#include <vector>

#include "data_kit/normalization.h"
#include "idx.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"

namespace engine::mnist {
namespace {

constexpr float kMean = 0.1307f;
constexpr float kDeviation = 0.3081f;
constexpr int64_t kMostClasses = 1 << 24;

using data_kit::NumberArray;

struct LabelledImages {
  NumberArray images, labels;

  int64_t size() const { return images.rows(); }
  bool channels_last() const {
    return images.shape.size() == 4 && images.shape[3] <= 4 && images.shape[1] > 4;
  }
  Shape ImageShape() const {
    const std::vector<int64_t>& shape = images.shape;
    if (shape.size() == 2) return {shape[1]};
    if (shape.size() == 3) return {1, shape[1], shape[2]};
    return channels_last() ? Shape{shape[3], shape[1], shape[2]}
                           : Shape{shape[1], shape[2], shape[3]};
  }
  int64_t Label(int64_t i) const {
    int64_t label = 0;
    labels.Read(i, 0, 1, &label);
    return label;
  }
};

Status Load(const std::string& images_path, const std::string& labels_path, LabelledImages* data) {
  ENGINE_ASSIGN_OR_RETURN(data->images, ReadIdx(images_path, 2, 4));
  ENGINE_ASSIGN_OR_RETURN(data->labels, ReadIdx(labels_path, 1, 1));
  if (data->images.elements.empty()) {
    return Status::Error(StatusCode::kBadData,
                         "%s: there are no images, by the extents at offset 4",
                         images_path.c_str());
  }
  if (!data->labels.type.is_integer()) {
    return Status::Error(StatusCode::kBadData, "%s: labels are integers, by the type at offset 2",
                         labels_path.c_str());
  }
  if (data->size() == data->labels.rows()) return {};
  return Status::Error(StatusCode::kBadData,
                       "%s: %" PRId64 " labels, by the extent at offset 4, for the %" PRId64
                       " images of %s",
                       labels_path.c_str(), data->labels.rows(), data->size(), images_path.c_str());
}

// How many classes there are up to the largest label, which is less than `most`.
Result<int64_t> CountClasses(const std::string& path, const LabelledImages& data, int64_t most) {
  int64_t largest = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    const int64_t label = data.Label(i);
    if (label < 0 || label >= most) {
      return Status::Error(StatusCode::kBadData,
                           "%s: the label at offset %" PRId64 " is %" PRId64
                           "; the classes are 0 to %" PRId64 "; see data.mnist.classes",
                           path.c_str(), HeaderBytes(1) + i * data.labels.type.size_bytes, label,
                           most - 1);
    }
    largest = std::max(largest, label);
  }
  return largest + 1;
}

class Mnist final : public kit::ReadDataset {
 public:
  Mnist(const Options& options, data_kit::Normalization normalization)
      : ReadDataset("mnist " + std::string(options.String("images")),
                    {.name = "image", .shape = {}},
                    {.name = "label", .shape = {}, .dtype = DType::kInt32}),
        images_(options.String("images")),
        labels_(options.String("labels")),
        eval_images_(options.String("eval_images")),
        eval_labels_(options.String("eval_labels")),
        holdout_(options.Float("holdout")),
        classes_(options.Int("classes")),
        normalizes_(!options.String("mean").empty() || !options.String("std").empty()),
        measures_(options.Bool("measure")),
        normalization_(std::move(normalization)) {
    knows_samples_ = false;  // their size is in the files
  }

  Status Fill(const FillCall& call) const noexcept override {
    return kit::CatchNoMemory([&]() -> Status {
      const bool train = call.split == Split::kTrain, shared = eval_images_.empty();
      const LabelledImages& from = train || shared ? data_ : eval_data_;
      const int64_t first = !train && shared ? train_samples_ : 0;
      std::vector<float> pixels(static_cast<size_t>(input_.shape.Count()));
      auto* out = static_cast<float*>(call.tensors[0]);
      auto* label = static_cast<int32_t*>(call.tensors[1]);
      for (const int64_t index : call.indices) {
        WriteImage(from, first + index, pixels, out);
        for (int64_t c = 0; c < Channels(); ++c) {
          normalization_.Apply(c, out + c * PlaneCount(), PlaneCount());
        }
        out += input_.shape.Count();
        *label++ = static_cast<int32_t>(from.Label(first + index));
      }
      return {};
    });
  }

 private:
  // What is held out are the last of the images, unless it has files of its own.
  Status Read() override {
    ENGINE_RETURN_IF_ERROR(Load(images_, labels_, &data_));
    if (eval_images_.empty()) {
      held_out_samples_ = kit::HoldoutCount(data_.size(), holdout_);
    } else {
      ENGINE_RETURN_IF_ERROR(Load(eval_images_, eval_labels_, &eval_data_));
      if (!(eval_data_.ImageShape() == data_.ImageShape() &&
            eval_data_.images.type == data_.images.type)) {
        return Status::Error(StatusCode::kBadData,
                             "%s: its images, by the type at offset 2 and the extents at offset 8, "
                             "have another type or another size than those of %s",
                             eval_images_.c_str(), images_.c_str());
      }
      held_out_samples_ = eval_data_.size();
    }
    train_samples_ = data_.size() - (eval_images_.empty() ? held_out_samples_ : 0);
    input_.shape = data_.ImageShape();
    if (input_.shape.ndim == 3) input_.content = TensorContent::kImage;
    ENGINE_RETURN_IF_ERROR(FindClasses());
    ENGINE_RETURN_IF_ERROR(FindNormalization());
    kit::Digest digest;
    for (const NumberArray* const array : {&data_.images, &data_.labels}) {
      const size_t row_bytes = array->elements.size() / static_cast<size_t>(array->rows());
      digest.Add(array->elements.data(), row_bytes * static_cast<size_t>(train_samples_));
    }
    digest_ = digest.Text();
    knows_samples_ = true;
    return {};
  }

  // Without the option the ten of MNIST, or as many as the labels say. A label that is larger than
  // the number of images is taken for damage.
  Status FindClasses() {
    const int64_t most = classes_ > 0 ? classes_ : std::max<int64_t>(10, data_.size());
    ENGINE_ASSIGN_OR_RETURN(int64_t classes, CountClasses(labels_, data_, most));
    if (!eval_images_.empty()) {
      ENGINE_ASSIGN_OR_RETURN(const int64_t others, CountClasses(eval_labels_, eval_data_, most));
      classes = std::max(classes, others);
    }
    target_.classes = classes_ > 0 ? classes_ : std::max<int64_t>(10, classes);
    return {};
  }

  Status FindNormalization() {
    if (measures_) {
      std::vector<data_kit::Moments> channels(static_cast<size_t>(Channels()));
      std::vector<float> pixels(static_cast<size_t>(input_.shape.Count())), image = pixels;
      for (int64_t i = 0; i < train_samples_; ++i) {
        WriteImage(data_, i, pixels, image.data());
        for (int64_t c = 0; c < Channels(); ++c) {
          channels[static_cast<size_t>(c)].Add(image.data() + c * PlaneCount(), PlaneCount());
        }
      }
      normalization_ = data_kit::Normalization::Measured(channels);
    } else if (!normalizes_ && IsBytes() && data_.images.shape.size() == 3) {
      normalization_ = {.mean = {kMean}, .deviation = {kDeviation}};
    }
    return normalization_.SpreadOver("data.mnist", Channels());
  }

  bool IsBytes() const {
    const data_kit::ElementType& type = data_.images.type;
    return type.size_bytes == 1 && type.kind == data_kit::ElementType::Kind::kUnsigned;
  }
  int64_t Channels() const { return input_.shape.ndim == 3 ? input_.shape[0] : 1; }
  int64_t PlaneCount() const { return input_.shape.Count() / Channels(); }

  // Channels first, not normalised yet. `pixels` is room for one image.
  void WriteImage(const LabelledImages& from, int64_t index, std::vector<float>& pixels,
                  float* out) const {
    const int64_t count = input_.shape.Count(), channels = Channels(), plane = PlaneCount();
    const bool turns = from.channels_last();
    float* const to = turns ? pixels.data() : out;
    from.images.Read(index, 0, count, to);
    if (IsBytes()) {
      for (int64_t i = 0; i < count; ++i) to[i] /= 255.0f;
    }
    for (int64_t i = 0; turns && i < count; ++i) out[i % channels * plane + i / channels] = to[i];
  }

  // Constant after Open.
  const std::string images_, labels_, eval_images_, eval_labels_;
  const double holdout_;
  const int64_t classes_;
  const bool normalizes_, measures_;
  data_kit::Normalization normalization_;
  LabelledImages data_, eval_data_;
};

StatusValue Create(Host&, const Options& options, Object** out) noexcept {
  if (options.String("eval_images").empty() != options.String("eval_labels").empty()) {
    return Status::Error(StatusCode::kConfig,
                         "data.mnist needs both eval_images and eval_labels, or none of them");
  }
  auto normalization =
      data_kit::Normalization::Parse("data.mnist", options.String("mean"), options.String("std"));
  if (!normalization.ok()) return normalization.status();
  return kit::Make<Mnist>(out, options, std::move(*normalization));
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "mnist", "1.0.0", "images and labels in IDX files, plain or gzip", Create,
    std::array{
        kit::PathOption("images", kit::Path::kRequired, "file of images to train on"),
        kit::PathOption("labels", kit::Path::kRequired, "file of their labels"),
        kit::PathOption("eval_images", kit::Path::kOptional, "file of images to hold out"),
        kit::PathOption("eval_labels", kit::Path::kOptional, "file of their labels"),
        kit::HoldoutOption(
            "without eval_images: the share of the images, at their end, that is held out"),
        kit::IntOption("classes", "0", 0, kMostClasses, "0: 10, or as many as the labels say"),
        kit::StringOption("mean", "", "of pixels from 0 to 1, for all channels or for each"),
        kit::StringOption("std", "", "the same; without both those of MNIST, for bytes"),
        kit::BoolOption("measure", "false", "mean and std are those of the images trained on")});

}  // namespace engine::mnist
