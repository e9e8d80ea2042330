// images: PNG and JPEG files of any size, each of a class.
//
// A sample is (channels, rows, columns) of `size` and the number of its class in the order of the
// classes' names. The image is made as large as `resize` says, its shorter side, and its middle is
// cut out, as torchvision's Resize and CenterCrop do; or, of those that are trained on, another
// part in every epoch (`crop`). Files are read and decoded when a sample is asked for; what is kept
// is the list of them. Its digest is of paths, classes and sizes of files.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "data_kit/normalization.h"
#include "file_list.h"
#include "image.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/file.h"
#include "kit/options.h"
#include "kit/thread.h"
#include "resample.h"

namespace engine::images {
namespace {

constexpr uint64_t kCropStream = 6;  // of the seed, beside those of the engine

enum class Crop { kCenter, kRandom, kRandomResized };
Crop CropOf(std::string_view word) {
  if (word == "random") return Crop::kRandom;
  return word == "random_resized" ? Crop::kRandomResized : Crop::kCenter;
}

struct Geometry {
  int64_t rows = 0, columns = 0;  // of a sample
  int64_t resize = 0;             // the shorter side before the cut
  bool stretch = false;           // to the size of a sample, whatever the shape was
  double least_area = 0;          // kRandomResized, of the image
};

// Numbers from 0 to 1, one after the other.
class Randoms {
 public:
  explicit Randoms(uint64_t bits) : bits_(bits) {}
  double operator()() { return static_cast<double>((bits_ = MixBits(bits_)) >> 11) * 0x1p-53; }
  // 0 .. most, all alike.
  int64_t Below(int64_t most) {
    return std::min(most, static_cast<int64_t>((*this)() * static_cast<double>(most + 1)));
  }

 private:
  uint64_t bits_;
};

struct Window {
  Axis rows, columns;
};

Window Box(int64_t top, int64_t left, int64_t height, int64_t width, const Geometry& to) {
  const auto axis = [](int64_t begin, int64_t size, int64_t count) {
    return Axis{.begin = static_cast<double>(begin),
                .scale = static_cast<double>(size) / static_cast<double>(count),
                .count = count,
                .first = begin,
                .last = begin + size};
  };
  return {axis(top, height, to.rows), axis(left, width, to.columns)};
}

// A part of the image with a random area and a ratio of its sides from 3/4 to 4/3 (Szegedy et al.:
// Going deeper with convolutions, 2014), as torchvision's RandomResizedCrop finds one.
std::optional<Window> RandomBox(const Image& image, const Geometry& to, Randoms& random) {
  constexpr int kTries = 10;
  const double area = static_cast<double>(image.rows * image.columns);
  for (int i = 0; i < kTries; ++i) {
    const double part = area * (to.least_area + (1 - to.least_area) * random());
    const double ratio = std::exp((2 * random() - 1) * std::log(4.0 / 3.0));
    const auto width = std::llround(std::sqrt(part * ratio));
    const auto height = std::llround(std::sqrt(part / ratio));
    if (width < 1 || height < 1 || width > image.columns || height > image.rows) continue;
    const int64_t top = random.Below(image.rows - height);
    return Box(top, random.Below(image.columns - width), height, width, to);
  }
  return {};
}

// The whole image, its shorter side `resize` pixels long, or longer where it must cover the sample,
// and of that the middle, or with `random` a part anywhere.
Window CutOut(const Image& image, const Geometry& to, Randoms* random) {
  if (to.stretch) return Box(0, 0, image.rows, image.columns, to);
  const auto rows = static_cast<double>(image.rows), columns = static_cast<double>(image.columns);
  const double factor =
      std::max({static_cast<double>(to.resize) / std::min(rows, columns),
                static_cast<double>(to.rows) / rows, static_cast<double>(to.columns) / columns});
  const auto axis = [&](int64_t size, int64_t count) {
    const double length = static_cast<double>(size) * factor;
    const int64_t whole = std::max(count, static_cast<int64_t>(length + 1e-6));
    const int64_t left = whole - count;
    const int64_t begin =
        random != nullptr ? random->Below(left) : std::lrint(static_cast<double>(left) / 2);
    const double scale = static_cast<double>(size) / static_cast<double>(whole);
    return Axis{.begin = static_cast<double>(begin) * scale,
                .scale = scale,
                .count = count,
                .first = 0,
                .last = size};
  };
  const Axis down = axis(image.rows, to.rows);
  return {down, axis(image.columns, to.columns)};
}

class Images final : public kit::ReadDataset {
 public:
  Images(Host& host, const Options& options, const Geometry& geometry,
         data_kit::Normalization normalization)
      : ReadDataset("images " + std::string(options.String("path")),
                    {.name = "image",
                     .shape = {options.Int("channels"), geometry.rows, geometry.columns},
                     .content = TensorContent::kImage},
                    {.name = "label", .shape = {}, .dtype = DType::kInt32}),
        host_(host),
        path_(options.String("path")),
        eval_path_(options.String("eval_path")),
        holdout_(options.Float("holdout")),
        geometry_(geometry),
        crop_(CropOf(options.String("crop"))),
        filter_(options.String("filter") == "area" ? Filter::kArea : Filter::kBilinear),
        measured_(options.Int("measure")),
        threads_(options.Int("threads")),
        normalization_(std::move(normalization)) {
    knows_samples_ = false;  // how many classes there are
  }

  // Samples are shared out to threads one by one; the error is that of the first that has one,
  // however many threads there are.
  Status Fill(const FillCall& call) const noexcept override {
    return kit::CatchNoMemory([&] { return FillAll(call); });
  }

 private:
  Status Read() override {
    ENGINE_ASSIGN_OR_RETURN(listing_, ListImages(path_, eval_path_));
    class_names_ = listing_.classes;
    target_.classes = static_cast<int64_t>(class_names_.size());
    split_ = kit::RowSplit(listing_.train.size(), listing_.has_held_out ? 0 : holdout_, seed_);
    train_samples_ = split_.count(Split::kTrain);
    held_out_samples_ =
        listing_.has_held_out ? listing_.held_out.size() : split_.count(Split::kHeldOut);
    kit::Digest digest;
    listing_.train.AddTo(digest);
    digest_ = digest.Text();
    if (measured_ > 0) ENGINE_RETURN_IF_ERROR(Measure());
    knows_samples_ = true;
    return {};
  }

  // Over images spread over the list, as they are evaluated: the same on every rank. The constants
  // are part of the model, so the user is told them.
  Status Measure() {
    const int64_t count = std::min(measured_, train_samples_), plane = input_.shape.Count(1, 3);
    std::vector<data_kit::Moments> channels(static_cast<size_t>(input_.shape[0]));
    std::vector<float> pixels(static_cast<size_t>(input_.shape.Count()));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = split_.Row(Split::kTrain, i * train_samples_ / count);
      ENGINE_ASSIGN_OR_RETURN(const Image image, Decode(listing_.train.Path(index)));
      const Window window = CutOut(image, geometry_, nullptr);
      Resample(image, window.rows, window.columns, filter_, pixels.data());
      for (size_t c = 0; c < channels.size(); ++c) {
        channels[c].Add(pixels.data() + static_cast<int64_t>(c) * plane, plane);
      }
    }
    normalization_ = data_kit::Normalization::Measured(channels);
    if (host_.rank_info().rank != 0) return {};
    host_.Log(LogLevel::kInfo,
              "measured over " + std::to_string(count) + " images: " + normalization_.Text() +
                  "; with these in place of measure other data is normalised alike");
    return {};
  }

  Status FillAll(const FillCall& call) const {
    const int64_t count = static_cast<int64_t>(call.indices.size());
    std::atomic<int64_t> next{0};
    std::vector<Status> results(call.indices.size());
    const auto work = [&] {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        results[static_cast<size_t>(i)] =
            kit::CatchNoMemory([&] { return FillOne(call, static_cast<size_t>(i)); });
      }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(static_cast<size_t>(threads_));
    try {
      for (int64_t i = 1; i < std::min(threads_, count); ++i) {
        helpers.push_back(kit::StartThread("images", work));
      }
    } catch (const std::exception&) {
      // No more threads are to be had: those that there are do the work.
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    for (Status& result : results) ENGINE_RETURN_IF_ERROR(std::move(result));
    return {};
  }

  // Mapped while it is decoded; the page cache keeps what is read again.
  Result<Image> Decode(const std::string& path) const {
    ENGINE_ASSIGN_OR_RETURN(const kit::MappedFile file, kit::MappedFile::Open(path));
    return DecodeImage(path, file.bytes(), input_.shape[0]);
  }

  // The sample at place `i` of the batch. What is random is drawn from a generator of this sample.
  Status FillOne(const FillCall& call, size_t i) const {
    const bool trains = call.split == Split::kTrain;
    const bool own_files = !trains && listing_.has_held_out;
    const FileList& from = own_files ? listing_.held_out : listing_.train;
    const int64_t index = call.indices[i];
    const int64_t file = own_files ? index : split_.Row(call.split, index);
    static_cast<int32_t*>(call.tensors[1])[i] = from.label(file);
    ENGINE_ASSIGN_OR_RETURN(const Image image, Decode(from.Path(file)));
    const int64_t channels = input_.shape[0], plane = input_.shape.Count(1, 3);
    float* const out =
        static_cast<float*>(call.tensors[0]) + static_cast<int64_t>(i) * channels * plane;
    Randoms random(RandomBits({seed_, kCropStream, call.epoch, static_cast<uint64_t>(index)}));
    std::optional<Window> window;
    if (trains && crop_ == Crop::kRandomResized) window = RandomBox(image, geometry_, random);
    if (!window)
      window = CutOut(image, geometry_, trains && crop_ == Crop::kRandom ? &random : nullptr);
    Resample(image, window->rows, window->columns, filter_, out);
    for (int64_t c = 0; c < channels; ++c) normalization_.Apply(c, out + c * plane, plane);
    return {};
  }

  Host& host_;
  // Constant after Open.
  const std::string path_, eval_path_;
  const double holdout_;
  const Geometry geometry_;
  const Crop crop_;
  const Filter filter_;
  const int64_t measured_, threads_;
  data_kit::Normalization normalization_;
  Listing listing_;
  kit::RowSplit split_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const auto size = options.Ints("size");
  if (size.empty() || size.size() > 2 || options.Int("channels") == 2) {
    return Status::Error(
        StatusCode::kConfig,
        "data.images: size is one number or two, rows and columns, and channels is "
        "1 (grey) or 3 (colours)");
  }
  const Geometry geometry{
      .rows = size.front(),
      .columns = size.back(),
      .resize = std::max(options.Int("resize"), std::min(size.front(), size.back())),
      .stretch = options.String("fit") == "stretch",
      .least_area = options.Float("least_area")};
  auto normalization =
      data_kit::Normalization::Parse("data.images", options.String("mean"), options.String("std"));
  if (!normalization.ok()) return normalization.status();
  ENGINE_RETURN_IF_ERROR(normalization->SpreadOver("data.images", options.Int("channels")));
  return kit::Make<Images>(out, host, options, geometry, std::move(*normalization));
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "images", "1.0.0",
    "PNG and JPEG files of any size, in a folder for each class or in a list", Create,
    std::array{
        kit::PathOption("path", kit::Path::kRequired,
                        "a folder with one for each class, one with train and val, or a CSV list: "
                        "path,class"),
        kit::PathOption("eval_path", kit::Path::kOptional, "folder or list of what is held out"),
        kit::HoldoutOption("where nothing else is held out: the share, by a hash, that is"),
        kit::IntsOption("size", "224", 1, 16384, "of a sample: one side, or rows and columns"),
        kit::IntOption("channels", "3", 1, 3, "3: colours, 1: grey"),
        kit::EnumOption("fit", "crop", "crop|stretch",
                        "crop: sides keep their ratio, what is too long is cut off"),
        kit::IntOption("resize", "0", 0, 16384,
                       "the shorter side before the cut; 0: the least, that of size"),
        kit::EnumOption("crop", "center", "center|random|random_resized",
                        "which part is trained on; evaluated is always the center"),
        kit::FloatOption("least_area", "0.08", 0.001, 1, "of random_resized, of the image"),
        kit::EnumOption("filter", "bilinear", "bilinear|area", "both antialiased"),
        kit::StringOption("mean", "", "of pixels from 0 to 1, for all channels or for each"),
        kit::StringOption("std", "", "the same: 0.229, 0.224, 0.225; default 1"),
        kit::IntOption("measure", "0", 0, 1e12,
                       "mean and std are those of so many images, instead"),
        kit::IntOption("threads", "1", 1, 256, "that decode, on each rank")});

}  // namespace engine::images
