// odd_data: two classes of points, which the last rank takes its time to make where they are held
// out.
#include <array>
#include <chrono>
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
        pause_ms_(rank.rank == rank.world_size - 1 ? options.Int("pause_ms") : 0) {}

  Status Fill(const FillCall& call) const noexcept override {
    auto* points = static_cast<float*>(call.tensors[0]);
    auto* classes = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      *classes++ = static_cast<int32_t>(index % 2);
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
    return {};
  }
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
    NoOps(), std::array{kit::IntOption("pause_ms", "0", 0, 1e6, "of the last rank, per batch")});

}  // namespace engine::odd_data
