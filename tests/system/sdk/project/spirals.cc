// spirals: points on the arms of a spiral. A sample has two inputs, the point and its distance from the
// middle, and two targets: the arm that the point is on, and whether it is in the upper half.
#include <array>
#include <cmath>
#include <cstdint>
#include <new>
#include <numbers>

#include "engine/dataset.h"
#include "engine/plugin.h"
#include "kit/options.h"

namespace {

constexpr double kTurns = 1.0;  // of an arm around the middle

class Spirals final : public engine::DatasetBase {
 public:
  explicit Spirals(const engine::Options& options) noexcept
      : samples_(options.Int("samples")), targets_(Targets(options.Int("arms"))) {}

  engine::DatasetInfo info() const noexcept override {
    return {.name = "spirals",
            .inputs = inputs_,
            .targets = targets_,
            .train_samples = samples_,
            .held_out_samples = samples_ / 4,
            .digest = {}};
  }

  // There is nothing to read.
  engine::Status Open(uint64_t seed) noexcept override {
    seed_ = seed;
    return {};
  }

  // A sample is a function of seed, split and index: the same on whatever rank it is made.
  engine::Status Fill(const engine::FillCall& call) const noexcept override {
    auto* point = static_cast<float*>(call.tensors[0]);
    auto* distance = static_cast<float*>(call.tensors[1]);
    auto* arm = static_cast<int32_t*>(call.tensors[2]);
    auto* upper = static_cast<int32_t*>(call.tensors[3]);
    const int64_t arms = targets_[0].classes;
    for (const int64_t index : call.indices) {
      const uint64_t bits = engine::RandomBits(
          {seed_, static_cast<uint64_t>(call.split), static_cast<uint64_t>(index)});
      const double along = 0.2 + 0.8 * static_cast<double>(bits >> 11) * 0x1p-53;
      *arm = static_cast<int32_t>(index % arms);
      const double turn = static_cast<double>(*arm) / static_cast<double>(arms) + kTurns * along;
      *point++ = static_cast<float>(along * std::cos(2 * std::numbers::pi * turn));
      *point++ = static_cast<float>(along * std::sin(2 * std::numbers::pi * turn));
      *upper++ = point[-1] > 0 ? 1 : 0;
      *distance++ = static_cast<float>(along);
      ++arm;
    }
    return {};
  }

 private:
  static std::array<engine::SampleTensor, 2> Targets(int64_t arms) noexcept {
    return {{{.name = "arm", .shape = {}, .dtype = engine::DType::kInt32, .classes = arms},
             {.name = "upper", .shape = {}, .dtype = engine::DType::kInt32, .classes = 2}}};
  }

  const int64_t samples_;
  const std::array<engine::SampleTensor, 2> inputs_{
      {{.name = "point", .shape = {2}}, {.name = "distance", .shape = {1}}}};
  const std::array<engine::SampleTensor, 2> targets_;
  uint64_t seed_ = 1;
};

engine::StatusValue Create(engine::Host&, const engine::Options& options,
                           engine::Object** out) noexcept {
  *out = new (std::nothrow) Spirals(options);
  if (*out) return {};
  return engine::Status::Error(engine::StatusCode::kResourceExhausted, "no memory");
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "spirals",
     .version = "1.0.0",
     .kind = engine::PluginKind::kDataset,
     .doc = "points on the arms of a spiral",
     .create = Create},
    engine::NoOps(),
    std::array{engine::kit::IntOption("samples", "512", 4, 1e9, "to train on"),
               engine::kit::IntOption("arms", "3", 2, 100, "of the spiral: classes")});
