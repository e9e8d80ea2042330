// A hook and the gradients of one step.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

struct Gradient {
  std::string name;
  std::vector<float> data;
  float scale = 1;

  double Value(size_t i) const { return double{data[i]} * scale; }
};

constexpr uint32_t kGradients = 5;

// Gradients of odd sizes, one of them empty, each with a scale of its own.
inline std::vector<Gradient> RandomGradients(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Gradient> gradients;
  for (size_t count : {1u, 37u, 0u, 1001u, 64u}) {
    Gradient& gradient = gradients.emplace_back();
    gradient.name = "layer" + std::to_string(gradients.size()) + ".weight";
    gradient.data.resize(count);
    for (float& x : gradient.data) x = normal(random);
    gradient.scale = 0.25f * static_cast<float>(gradients.size());
  }
  return gradients;
}

// A part of one gradient, as it is shown to hooks; each has a scale of its own.
struct GradientSpan {
  size_t parameter = 0;
  int64_t offset = 0;
  int64_t count = 0;
  float scale = 1;
};

inline std::vector<GradientSpan> WholeSpans(const std::vector<Gradient>& gradients) {
  std::vector<GradientSpan> spans;
  for (size_t p = 0; p < gradients.size(); ++p) {
    spans.push_back({p, 0, static_cast<int64_t>(gradients[p].data.size()), gradients[p].scale});
  }
  return spans;
}

// The spans of all gradients, cut at random, in random order.
inline std::vector<GradientSpan> RandomSpans(const std::vector<Gradient>& gradients,
                                             std::mt19937& random) {
  std::vector<GradientSpan> spans;
  for (size_t p = 0; p < gradients.size(); ++p) {
    const auto count = static_cast<int64_t>(gradients[p].data.size());
    for (int64_t offset = 0; offset < count;) {
      const int64_t part = std::uniform_int_distribution<int64_t>(1, count - offset)(random);
      spans.push_back({p, offset, part, gradients[p].scale});
      offset += part;
    }
  }
  std::shuffle(spans.begin(), spans.end(), random);
  return spans;
}

inline GradientView View(std::vector<Gradient>& gradients, GradientSpan& span) {
  Gradient& gradient = gradients[span.parameter];
  return {.parameter = static_cast<uint32_t>(span.parameter),
          .name = gradient.name,
          .data = gradient.data.data() + span.offset,
          .offset = span.offset,
          .count = span.count,
          .scale = &span.scale};
}

inline Status ObserveAll(GradientHook& hook, std::vector<Gradient>& gradients,
                         std::span<GradientSpan> spans) {
  for (GradientSpan& span : spans) ENGINE_RETURN_IF_ERROR(hook.Observe(View(gradients, span)));
  return {};
}

// One step of one hook. The scales of `spans` are then those of the result.
inline Status RunHook(GradientHook& hook, std::vector<Gradient>& gradients, uint64_t step,
                      std::span<GradientSpan> spans) {
  ENGINE_RETURN_IF_ERROR(hook.BeginStep(step));
  if (hook.traits().scope == HookScope::kGlobal) {
    ENGINE_RETURN_IF_ERROR(ObserveAll(hook, gradients, spans));
  }
  for (GradientSpan& span : spans) ENGINE_RETURN_IF_ERROR(hook.Apply(View(gradients, span)));
  return {};
}

// The same on whole gradients.
inline Status RunHook(GradientHook& hook, std::vector<Gradient>& gradients, uint64_t step) {
  std::vector<GradientSpan> spans = WholeSpans(gradients);
  const Status status = RunHook(hook, gradients, step, spans);
  for (const GradientSpan& span : spans) gradients[span.parameter].scale = span.scale;
  return status;
}

// One step of a global hook with sharded updates: instance r is shown the spans of shares[r] only,
// what they observed is summed in float32, and each applies its share. Returns how many numbers
// were summed in `number_count`.
inline Status RunHookSharded(std::span<const std::unique_ptr<GradientHook>> ranks,
                             std::vector<Gradient>& gradients, uint64_t step,
                             std::span<std::vector<GradientSpan>> shares, size_t* number_count) {
  std::vector<std::span<float>> observed;
  for (size_t r = 0; r < ranks.size(); ++r) {
    ENGINE_RETURN_IF_ERROR(ranks[r]->BeginStep(step));
    ENGINE_RETURN_IF_ERROR(ObserveAll(*ranks[r], gradients, shares[r]));
    observed.push_back(ranks[r]->Observed());
    if (observed[r].size() != observed[0].size() || observed[r].size() > 16) {
      return Status::Error(StatusCode::kPlugin, "rank %zu observed %zu numbers", r,
                           observed[r].size());
    }
  }
  *number_count = observed[0].size();
  for (size_t i = 0; i < *number_count; ++i) {
    float sum = 0;
    for (const std::span<float> numbers : observed) sum += numbers[i];
    for (const std::span<float> numbers : observed) numbers[i] = sum;
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (GradientSpan& span : shares[r]) {
      ENGINE_RETURN_IF_ERROR(ranks[r]->Apply(View(gradients, span)));
    }
  }
  return {};
}

}  // namespace engine::conform
