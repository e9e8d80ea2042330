// cifar10: small colour images with one of 10 or 100 classes: the binary versions of CIFAR-10 and
// CIFAR-100 (Krizhevsky: Learning multiple layers of features from tiny images, 2009;
// www.cs.toronto.edu/~kriz/cifar.html).
//
//   file   = record{1 ..}                         any number of them
//   record = label{1 or 2} plane plane plane      red, green, blue
//   label  = one byte; of CIFAR-100 the coarse one, 0 .. 19, and the fine one, 0 .. 99
//   plane  = one byte for each of 32 x 32 pixels, row by row
//
// data_batch_1.bin to at most data_batch_5.bin, or train.bin, are trained on; test_batch.bin, or
// test.bin, is held out. Files of names, a line for each class, are read where they are. Samples of
// (3, 32, 32) float32: each plane with mean 0 and standard deviation 1 over the 50,000 training
// images of the set.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/digest.h"
#include "kit/file.h"
#include "kit/options.h"

namespace engine::cifar10 {
namespace {

constexpr int64_t kChannels = 3, kSide = 32;
constexpr int64_t kPlaneBytes = kSide * kSide;

// Files, and mean and deviation of the training images with pixels from 0 to 1.
struct Family {
  const char* title;
  int64_t label_bytes;
  std::array<const char*, 5> train;  // names of files, then nulls
  const char* held_out;
  float mean[kChannels], deviation[kChannels];

  int64_t record_bytes() const { return label_bytes + kChannels * kPlaneBytes; }
};
constexpr Family kCifar10 = {"CIFAR-10",
                             1,
                             {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                              "data_batch_4.bin", "data_batch_5.bin"},
                             "test_batch.bin",
                             {0.4914f, 0.4822f, 0.4465f},
                             {0.2470f, 0.2435f, 0.2616f}};
constexpr Family kCifar100 = {"CIFAR-100",
                              2,
                              {"train.bin"},
                              "test.bin",
                              {0.5071f, 0.4865f, 0.4409f},
                              {0.2673f, 0.2564f, 0.2762f}};

struct Set : Family {
  std::string_view name;   // value of the option `labels`
  int64_t classes, label;  // `label`: which of the bytes
  const char* names;       // file
};
constexpr Set kSets[] = {{kCifar10, "cifar10", 10, 0, "batches.meta.txt"},
                         {kCifar100, "cifar100_fine", 100, 1, "fine_label_names.txt"},
                         {kCifar100, "cifar100_coarse", 20, 0, "coarse_label_names.txt"}};

const Set& SetOf(std::string_view labels) {
  return *std::ranges::find(kSets, labels, &Set::name);
}

// What each value of a pixel becomes.
using PixelTable = std::array<std::array<float, 256>, kChannels>;

PixelTable MakePixelTable(const Set& set) {
  PixelTable table;
  for (size_t channel = 0; channel < kChannels; ++channel) {
    for (size_t value = 0; value < 256; ++value) {
      table[channel][value] =
          (static_cast<float>(value) / 255.0f - set.mean[channel]) / set.deviation[channel];
    }
  }
  return table;
}

Status CheckRecords(const Set& set, const std::string& path, const kit::MappedFile& file) {
  const auto bytes = file.bytes();
  const int64_t size = static_cast<int64_t>(bytes.size()), record = set.record_bytes();
  if (size == 0 || size % record != 0) {
    return Status::Error(StatusCode::kBadData,
                         "%s: %" PRId64 " bytes are no whole number of records of %" PRId64
                         " bytes (labels and an image); is it of the binary version of %s?",
                         path.c_str(), size, record, set.title);
  }
  for (int64_t begin = 0; begin < size; begin += record) {
    const int64_t offset = begin + set.label;
    const int label = bytes[static_cast<size_t>(offset)];
    if (label < set.classes) continue;
    return Status::Error(StatusCode::kBadData,
                         "%s: the label of record %" PRId64 ", at offset %" PRId64
                         ", is %d; the classes are 0 to %" PRId64,
                         path.c_str(), begin / record, offset, label, set.classes - 1);
  }
  return {};
}

// The lines of a file that need not be there; none if they are not as many as the classes.
std::vector<std::string> ReadNames(const Set& set, const std::string& folder) {
  const auto file = kit::MappedFile::Open(folder + "/" + set.names);
  std::vector<std::string> names(1);
  if (file.ok()) {
    for (const uint8_t byte : file->bytes()) {
      if (byte == '\n' && !names.back().empty()) names.emplace_back();
      if (byte > ' ') names.back() += static_cast<char>(byte);
    }
  }
  if (names.back().empty()) names.pop_back();
  if (static_cast<int64_t>(names.size()) != set.classes) names.clear();
  return names;
}

bool Exists(const std::string& folder, const char* name) {
  std::error_code ignored;
  return std::filesystem::exists(folder + "/" + name, ignored);
}

// What is trained on, or what is held out.
struct Files {
  std::vector<kit::MappedFile> files;
  std::vector<int64_t> ends;  // of each, in samples

  int64_t samples() const { return ends.empty() ? 0 : ends.back(); }

  // Every label is checked here.
  Status Open(const Set& set, const std::string& folder, std::span<const char* const> names) {
    // The last ones need not be there: a part of the set is one.
    while (names.size() > 1 && (names.back() == nullptr || !Exists(folder, names.back()))) {
      names = names.first(names.size() - 1);
    }
    for (const char* const name : names) {
      const std::string path = folder + "/" + name;
      auto file = kit::MappedFile::Open(path);
      if (!file.ok()) return file.status().WithContext("data.cifar10");
      ENGINE_RETURN_IF_ERROR(CheckRecords(set, path, *file));
      ends.push_back(samples() + static_cast<int64_t>(file->bytes().size()) / set.record_bytes());
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
            {.name = "label",
             .shape = {},
             .dtype = DType::kInt32,
             .classes = SetOf(options.String("labels")).classes}),
        folder_(options.String("path")),
        set_(SetOf(options.String("labels"))),
        pixels_(MakePixelTable(set_)) {}

  Status Fill(const FillCall& call) const noexcept override {
    const Files& from = call.split == Split::kTrain ? train_ : held_out_;
    auto* out = static_cast<float*>(call.tensors[0]);
    auto* label = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const auto [file, number] = kit::Locate(from.ends, index);
      const uint8_t* record = from.files[file].bytes().data() + number * set_.record_bytes();
      *label++ = record[set_.label];
      record += set_.label_bytes;
      for (const std::array<float, 256>& table : pixels_) {
        for (int64_t i = 0; i < kPlaneBytes; ++i) *out++ = table[*record++];
      }
    }
    return {};
  }

 private:
  Status Read() override {
    ENGINE_RETURN_IF_ERROR(train_.Open(set_, folder_, set_.train));
    ENGINE_RETURN_IF_ERROR(held_out_.Open(set_, folder_, {&set_.held_out, 1}));
    class_names_ = ReadNames(set_, folder_);
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
  const Set& set_;
  const PixelTable pixels_;
  Files train_, held_out_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kDataset, "cifar10", "1.0.0", "the binary versions of CIFAR-10 and CIFAR-100",
    kit::Create<Cifar10>,
    std::array{kit::PathOption("path", kit::Path::kRequired,
                               "the folder with data_batch_1.bin to data_batch_5.bin and "
                               "test_batch.bin, or with train.bin and test.bin"),
               kit::EnumOption("labels", "cifar10", "cifar10|cifar100_fine|cifar100_coarse",
                               "which set, and of CIFAR-100 which of its labels")});

}  // namespace engine::cifar10
