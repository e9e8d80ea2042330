// cifar10: small colour images with one of ten classes: the binary version of CIFAR-10 (Krizhevsky:
// Learning multiple layers of features from tiny images, 2009; www.cs.toronto.edu/~kriz/cifar.html).
//
//   file   = record{1 ..}                    10,000 in the files of the set
//   record = label plane plane plane         red, green, blue: 3073 bytes
//   label  = one byte, 0 .. 9
//   plane  = one byte for each of 32 x 32 pixels, row by row
//
// data_batch_1.bin to data_batch_5.bin are trained on, test_batch.bin is held out; files of any
// number of records are taken. Samples of (3, 32, 32) float32: each plane with mean 0 and standard
// deviation 1 over the 50,000 training images of CIFAR-10.
#include <array>
#include <cinttypes>
#include <string>
#include <utility>
#include <vector>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/options.h"

namespace engine::cifar10 {
namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kChannels = 3, kSide = 32;
constexpr int64_t kPlaneBytes = kSide * kSide;
constexpr int64_t kRecordBytes = 1 + kChannels * kPlaneBytes;
// Of the training images, with pixels from 0 to 1.
constexpr float kMean[kChannels] = {0.4914f, 0.4822f, 0.4465f};
constexpr float kDeviation[kChannels] = {0.2470f, 0.2435f, 0.2616f};

// What each value of a pixel becomes.
using PixelTable = std::array<std::array<float, 256>, kChannels>;

PixelTable MakePixelTable() {
  PixelTable table;
  for (size_t channel = 0; channel < kChannels; ++channel) {
    for (size_t value = 0; value < 256; ++value) {
      table[channel][value] =
          (static_cast<float>(value) / 255.0f - kMean[channel]) / kDeviation[channel];
    }
  }
  return table;
}

Status CheckRecords(const std::string& path, const kit::MappedFile& file) {
  const auto bytes = file.bytes();
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size == 0 || size % kRecordBytes != 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s: %" PRId64 " bytes are no whole number of records of %" PRId64
                         " bytes (a label and an image); is it of the binary version of CIFAR-10?",
                         path.c_str(), size, kRecordBytes);
  }
  for (int64_t offset = 0; offset < size; offset += kRecordBytes) {
    const uint8_t label = bytes[static_cast<size_t>(offset)];
    if (label < kClasses) continue;
    return Status::Error(StatusCode::kBadData,
                         "%s: the label of record %" PRId64 ", at offset %" PRId64
                         ", is %d; the classes are 0 to 9",
                         path.c_str(), offset / kRecordBytes, offset, label);
  }
  return {};
}

// What is trained on, or what is held out.
struct Files {
  std::vector<kit::MappedFile> files;
  std::vector<int64_t> ends;  // of each, in samples

  int64_t samples() const { return ends.empty() ? 0 : ends.back(); }

  // Every label is checked here.
  Status Open(const std::string& folder, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const std::string path = folder + "/" + name;
      auto file = kit::MappedFile::Open(path);
      if (!file.ok()) return file.status().WithContext("data.cifar10");
      ENGINE_RETURN_IF_ERROR(CheckRecords(path, *file));
      ends.push_back(samples() + static_cast<int64_t>(file->bytes().size()) / kRecordBytes);
      files.push_back(std::move(*file));
    }
    return {};
  }
};

class Cifar10 final : public kit::ReadDataset {
 public:
  explicit Cifar10(const Options& options)
      : ReadDataset(
            "cifar10 " + std::string(options.String("path")),
            {.name = "image", .shape = {kChannels, kSide, kSide}, .content = TensorContent::kImage},
            {.name = "label", .shape = {}, .dtype = DType::kInt32, .classes = kClasses}),
        folder_(options.String("path")),
        pixels_(MakePixelTable()) {}

  Status Fill(const FillCall& call) const noexcept override {
    const Files& from = call.split == Split::kTrain ? train_ : held_out_;
    auto* out = static_cast<float*>(call.tensors[0]);
    auto* label = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const auto [file, number] = kit::Locate(from.ends, index);
      const uint8_t* record = from.files[file].bytes().data() + number * kRecordBytes;
      *label++ = *record++;
      for (const std::array<float, 256>& table : pixels_) {
        for (int64_t i = 0; i < kPlaneBytes; ++i) *out++ = table[*record++];
      }
    }
    return {};
  }

 private:
  Status Read() override {
    ENGINE_RETURN_IF_ERROR(
        train_.Open(folder_, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                              "data_batch_4.bin", "data_batch_5.bin"}));
    ENGINE_RETURN_IF_ERROR(held_out_.Open(folder_, {"test_batch.bin"}));
    train_samples_ = train_.samples();
    held_out_samples_ = held_out_.samples();
    kit::Digest digest;
    for (const kit::MappedFile& file : train_.files) {
      digest.Add(file.bytes().data(), file.bytes().size());
    }
    digest_ = digest.Text();
    return {};
  }

  // Constant after Open.
  const std::string folder_;
  const PixelTable pixels_;
  Files train_, held_out_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "cifar10",
     .version = "1.0.0",
     .kind = PluginKind::kDataset,
     .doc = "the binary version of CIFAR-10",
     .create = kit::Create<Cifar10>},
    NoOps(),
    std::array{kit::PathOption("path", kit::Path::kRequired,
                               "the folder with data_batch_1.bin to data_batch_5.bin, and "
                               "test_batch.bin, which is held out")});

}  // namespace engine::cifar10
