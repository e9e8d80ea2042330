// topk: of each span of a gradient only the elements of largest magnitude travel; what a rank has
// not sent it adds to its gradient of the next step (error feedback: Stich, Cordonnier and Jaggi,
// "Sparsified SGD with Memory", 2018).
//
// With g the sum of gradients over the targets of this rank times the loss scale s, n the targets of
// all ranks, and e the residual, a step makes of them
//
//   p = e + g / (n s)      sent = n s top(p)      e = p - top(p)
//
// and the update is the sum of `sent` over ranks, over n s. So n and s of a step are gone at its end:
// after any steps all updates are the sum of all mean gradients, less the residuals of all ranks.
//
//   block  = indices values      of one span on one rank
//   indices = uint32 * kept      ascending positions in the span
//   values  = float32 * kept
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/ext/wire_format.h"
#include "kit/create.h"
#include "kit/options.h"
#include "select.h"

namespace engine::topk {
namespace {

class TopK final : public WireHook {
 public:
  explicit TopK(const Options& options) noexcept : ratio_(options.Float("ratio")) {}

  WireTraits wire_traits() const noexcept override {
    return {.kind = WireKind::kPacked, .state_count = 1, .state_names = {{"mean_residual"}}};
  }

  int64_t PackedBytes(int64_t count) const noexcept override {
    return KeptOf(count) * static_cast<int64_t>(sizeof(uint32_t) + sizeof(float));
  }

  // Of p each element is either sent or kept, whole.
  Status Pack(const WireCall& call) noexcept override {
    float* const residual = call.states[0];
    const int64_t kept = KeptOf(call.count);
    const float scale = *call.scale;
    const Threshold threshold =
        selector_.AddAndFind(call.gradient, scale, residual, call.count, kept);
    auto* const indices = static_cast<uint32_t*>(call.wire);
    auto* const values = reinterpret_cast<float*>(indices + kept);
    TakeOut(threshold, residual, call.count, indices, values);
    for (int64_t i = 0; i < kept; ++i) values[i] /= scale;
    return {};
  }

  Status Unpack(const WireCall& call) noexcept override {
    const int64_t kept = KeptOf(call.count);
    const auto* const indices = static_cast<const uint32_t*>(call.wire);
    const auto* const values = reinterpret_cast<const float*>(indices + kept);
    if (call.accumulate == 0) {
      std::memset(call.gradient, 0, static_cast<size_t>(call.count) * sizeof(float));
    }
    for (int64_t i = 0; i < kept; ++i) {
      if (indices[i] >= call.count) return OutOfRange(indices[i], call.count);
      call.gradient[indices[i]] += values[i];
    }
    return {};
  }

 private:
  int64_t KeptOf(int64_t count) const noexcept {
    const int64_t kept = std::llround(ratio_ * static_cast<double>(count));
    return std::clamp<int64_t>(kept, 1, count);
  }

  static Status OutOfRange(uint32_t index, int64_t count) noexcept {
    return Status::Error(StatusCode::kBadData,
                         "element %u of a span of %lld: what arrived was not sent by topk", index,
                         static_cast<long long>(count));
  }

  const double ratio_;
  Selector selector_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kHook, "topk", "1.0.0",
    "only the largest elements of gradients travel; the rest is added to the next ones",
    kit::CreateOnCpu<TopK>,
    std::array{kit::FloatOption("ratio", "0.01", 1e-6, 1,
                                "elements of each gradient that travel, of all; at least one")});

}  // namespace engine::topk
