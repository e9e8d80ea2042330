// my_plugin: points on the arms of a spiral; a sample is a point, and which arm it is on.
#include "kit/dataset.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine {
namespace {

class Spiral final : public kit::ReadDataset {
 public:
  // Options that the descriptor below publishes are always there, and within their ranges.
  explicit Spiral(const Options& options)
      : ReadDataset(
            "my_plugin", {.name = "point", .shape = {2}},
            {.name = "arm", .shape = {}, .dtype = DType::kInt32, .classes = options.Int("arms")}) {
    train_samples_ = options.Int("samples");
    held_out_samples_ = train_samples_ / 4;
  }

  // Writes the samples that are asked for, one after the other. What is in a sample depends on
  // options, seed, split, epoch and index alone, so that any rank can make any sample.
  Status Fill(const FillCall& call) const noexcept override {
    auto* point = static_cast<float*>(call.tensors[0]);
    auto* arm = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      const uint64_t bits =
          RandomBits({seed_, static_cast<uint64_t>(call.split), static_cast<uint64_t>(index)});
      const double radius = 0.2 + 0.8 * static_cast<double>(bits >> 11) * 0x1p-53;
      *arm = static_cast<int32_t>(index % target_.classes);
      const double turn = radius + static_cast<double>(*arm) / static_cast<double>(target_.classes);
      *point++ = static_cast<float>(radius * std::cos(2 * std::numbers::pi * turn));
      *point++ = static_cast<float>(radius * std::sin(2 * std::numbers::pi * turn));
      ++arm;
    }
    return {};
  }

 private:
  // Where files are opened: sets the numbers of samples, and digest_, which ranks compare.
  Status Read() override { return {}; }
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "my_plugin",
                    .version = "0.1.0",
                    .kind = PluginKind::kDataset,
                    .doc = "points on the arms of a spiral",
                    .create = kit::Create<Spiral>},
                   NoOps(),
                   std::array{kit::IntOption("samples", "512", 4, 1e9, "to train on"),
                              kit::IntOption("arms", "3", 2, 100, "of the spiral: classes")});

}  // namespace engine
