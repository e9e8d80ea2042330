#include "core/data/cifar10.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <memory>
#include <utility>
#include <vector>

#include "app/checkpoint/digest.h"
#include "core/data/mapped_file.h"

namespace engine {
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

class Cifar10Dataset final : public Dataset {
 public:
  Cifar10Dataset(std::vector<MappedFile> files, const std::string& name)
      : files_(std::move(files)), pixels_(MakePixelTable()) {
    Digest digest;
    for (const MappedFile& file : files_) {
      info_.size += static_cast<int64_t>(file.bytes().size()) / kRecordBytes;
      ends_.push_back(info_.size);
      digest.Add(file.bytes().data(), file.bytes().size());
    }
    info_.name = name;
    info_.input_shape = {kChannels, kSide, kSide};
    info_.classes = kClasses;
    info_.digest = digest.Text();
  }

  const DatasetInfo& info() const override { return info_; }

  Status Get(uint64_t, int64_t index, void* input, int32_t* target) const override {
    const size_t f =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const int64_t begin = f == 0 ? 0 : ends_[f - 1];
    const uint8_t* record = files_[f].bytes().data() + (index - begin) * kRecordBytes;
    *target = *record++;
    float* out = static_cast<float*>(input);
    for (const std::array<float, 256>& table : pixels_) {
      for (int64_t i = 0; i < kPlaneBytes; ++i) *out++ = table[*record++];
    }
    return {};
  }

 private:
  const std::vector<MappedFile> files_;
  const PixelTable pixels_;
  std::vector<int64_t> ends_;  // of each file, in samples of the dataset
  DatasetInfo info_;
};

Status CheckRecords(const std::string& path, const MappedFile& file) {
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

Result<std::unique_ptr<Dataset>> Load(const std::string& folder,
                                      const std::vector<std::string>& names) {
  std::vector<MappedFile> files;
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    auto file = MappedFile::Open(path);
    if (!file.ok()) return file.status().WithContext("data.cifar10");
    ENGINE_RETURN_IF_ERROR(CheckRecords(path, *file));
    files.push_back(std::move(*file));
  }
  return std::unique_ptr<Dataset>(
      std::make_unique<Cifar10Dataset>(std::move(files), "cifar10 " + folder));
}

}  // namespace

Result<DatasetPair> OpenCifar10(const std::string& folder) {
  if (folder.empty()) {
    return Status::Error(StatusCode::kConfig,
                         "data.cifar10 needs a path: the folder with data_batch_1.bin");
  }
  DatasetPair pair;
  ENGINE_ASSIGN_OR_RETURN(pair.train,
                          Load(folder, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin"}));
  ENGINE_ASSIGN_OR_RETURN(pair.eval, Load(folder, {"test_batch.bin"}));
  return pair;
}

}  // namespace engine
