// odd_data: two classes of points, which the last rank takes its time to make where they are held
// out, or of which it says what cannot be.
#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/dataset.h"
#include "kit/options.h"

namespace engine::odd_data {
namespace {

class OddData final : public kit::ReadDataset {
 public:
  OddData(const RankInfo& rank, const Options& options)
      : ReadDataset("odd_data", {.name = "point", .shape = {2}},
                    {.name = "class", .dtype = DType::kInt32, .classes = 2}),
        answer_(options.String("answer")),
        pause_ms_(rank.rank == rank.world_size - 1 ? options.Int("pause_ms") : 0) {}

  Status Fill(const FillCall& call) const noexcept override {
    auto* points = static_cast<float*>(call.tensors[0]);
    auto* classes = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      *classes++ = answer_ == "class" ? 2 : static_cast<int32_t>(index % 2);
      *points++ = static_cast<float>(index % 2);
      *points++ = static_cast<float>(index % 3);
    }
    if (call.split == Split::kHeldOut) {
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
    }
    return {};
  }

 private:
  Status Read() override {
    train_samples_ = held_out_samples_ = 8;
    if (answer_ == "samples") train_samples_ = -1;
    if (answer_ == "empty") train_samples_ = 0;
    if (answer_ == "extents") input_.shape = {int64_t{1} << 40, int64_t{1} << 40};
    if (answer_ == "dimensions") input_.shape.ndim = -1;
    if (answer_ == "digest") digest_ = "\xff\x1b[31m";
    return {};
  }
  const std::string answer_;
  const int64_t pause_ms_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::Make<OddData>(out, host.rank_info(), options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "odd_data",
     .version = "1.0.0",
     .kind = PluginKind::kDataset,
     .doc = "points, of which the last rank holds out some for a while",
     .create = Create},
    NoOps(),
    std::array{kit::IntOption("pause_ms", "0", 0, 1e6, "of the last rank, per batch"),
               kit::StringOption("answer", "", "what is wrong")});

}  // namespace engine::odd_data
