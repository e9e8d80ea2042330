#include "conv_axis.h"

#include <algorithm>
#include <numeric>

namespace engine::cpu_ops {
namespace {

// Appends target `at`, to the last run of every `stride`-th target if it continues it.
void AddTarget(AxisPlan* plan, int64_t stride, const AxisRun& target) {
  for (auto run = plan->runs.rbegin(); run != plan->runs.rend(); ++run) {
    const int64_t step = target.first - (run->first + (run->count - 1) * run->step);
    if (step != stride || run->tap_first != target.tap_first ||
        run->tap_count != target.tap_count) {
      continue;
    }
    const int64_t source_step =
        target.source_first - (run->source_first + (run->count - 1) * run->source_step);
    if (run->count > 1 && source_step != run->source_step) continue;
    run->step = stride;
    run->source_step = source_step;
    ++run->count;
    return;
  }
  plan->runs.push_back(target);
}

}  // namespace

bool AxisPlan::Meets(int64_t index) const noexcept {
  return std::any_of(runs.begin(), runs.end(), [&](const AxisRun& run) {
    return run.tap_first <= index && index < run.tap_first + run.tap_count;
  });
}

AxisPlan ForwardAxis(const Window& window, int64_t inputs, int64_t outputs) {
  AxisPlan plan;
  plan.tap_step = window.dilation;
  for (int64_t tap = 0; tap < window.kernel; ++tap) plan.taps.push_back(tap);
  for (int64_t output = 0; output < outputs; ++output) {
    const Window::Range taps = window.Taps(output, inputs);
    AddTarget(&plan, 1,
              {.first = output,
               .count = 1,
               .tap_first = taps.size() > 0 ? taps.begin : 0,
               .tap_count = taps.size(),
               .source_first = window.InputOf(output, taps.begin)});
  }
  return plan;
}

AxisPlan BackwardAxis(const Window& window, int64_t inputs, int64_t outputs) {
  AxisPlan plan;
  plan.tap_step = window.dilation / std::gcd(window.dilation, window.stride);
  // No input has a place beyond: with a large stride most residues are nobody's.
  const int64_t residues = std::min(window.stride, inputs + window.before);
  std::vector<int64_t> list_begin;  // per residue, where its taps are in the list
  for (int64_t residue = 0; residue <= residues; ++residue) {
    list_begin.push_back(plan.size());
    for (int64_t tap = window.kernel - 1; tap >= 0; --tap) {
      const int64_t own = std::min(tap * window.dilation % window.stride, residues);
      if (own == residue) plan.taps.push_back(tap);
    }
  }
  for (int64_t input = 0; input < inputs; ++input) {
    const int64_t place = input + window.before;
    const auto residue = static_cast<size_t>(place % window.stride);
    AxisRun target = {.first = input, .count = 1, .tap_first = list_begin[residue]};
    for (int64_t i = list_begin[residue]; i < list_begin[residue + 1]; ++i) {
      const int64_t before = place - plan.taps[static_cast<size_t>(i)] * window.dilation;
      const bool met = before >= 0 && before / window.stride < outputs;
      if (!met || target.tap_count++ > 0) continue;
      target.tap_first = i;
      target.source_first = before / window.stride;
    }
    AddTarget(&plan, window.stride, target);
  }
  return plan;
}

}  // namespace engine::cpu_ops
