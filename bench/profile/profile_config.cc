// A profile as a configuration. The text is the reviewed form of configs/profile_*.pbtxt, which a
// test compares with it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "bench/profile/profile.h"

namespace engine::bench {
namespace {

constexpr double kBytesPerParameter = 4;
constexpr double kLargestScale = 1000;

Status CheckOptions(const ProfileOptions& options) {
  const char* wrong = nullptr;
  if (!(options.time_scale >= 0 && options.time_scale <= kLargestScale)) {
    wrong = "the scale of times must be from 0 to 1000";
  } else if (!(options.bytes_scale > 0 && options.bytes_scale <= kLargestScale)) {
    wrong = "the scale of bytes must be more than 0 and at most 1000";
  } else if (!(options.jitter >= 0 && options.jitter < 1)) {
    wrong = "the jitter of times must be at least 0 and less than 1";
  } else if (options.steps < 1) {
    wrong = "there must be at least one step";
  }
  if (wrong == nullptr) return {};
  return Status::Error(StatusCode::kInvalidArgument, "profile: %s", wrong);
}

double BackwardMs(const LayerProfile& profile) {
  double sum = 0;
  for (const ProfileLayer& layer : profile.layers) sum += layer.backward_ms;
  return sum;
}

int64_t Parameters(const ProfileLayer& layer) {
  return std::llround(layer.gradient_mb * 1e6 / kBytesPerParameter);
}

// As profile_ops rounds it.
int64_t ScaledBytes(const ProfileLayer& layer, double scale) {
  const auto count = std::llround(static_cast<double>(Parameters(layer)) * scale);
  return std::max<int64_t>(count, 1) * static_cast<int64_t>(kBytesPerParameter);
}

ProfileFacts FactsOf(const LayerProfile& profile, const ProfileOptions& options) {
  ProfileFacts facts;
  facts.forward_seconds = profile.forward_ms * options.time_scale / 1e3;
  facts.backward_seconds = BackwardMs(profile) * options.time_scale / 1e3;
  for (const ProfileLayer& layer : profile.layers) {
    facts.gradient_bytes += ScaledBytes(layer, options.bytes_scale);
  }
  return facts;
}

constexpr char kHeader[] =
    R"(# The layer profile of a real network, with sleeps in place of its arithmetic: what is measured
# is the scheduler and the communicator. bench/profile/profile_config.cc writes this file.
#
#   engine run configs/profile_{}.pbtxt -n 2
#   engine run configs/profile_{}.pbtxt -n 2 --plugins priority_sched
#
# {}.
# The time of the forward pass (with the optimizer) is known as a whole: each layer has a share in
# proportion to its backward time. With the scales below, a step has {:.1f} ms of forward and {:.1f} ms
# of backward pass, and gradients of {:.1f} MB, which two ranks exchange in as long at {:.0f} Mbit/s.
# docs/benchmarking.md says what to expect of which scheduler.

)";

std::string Header(const LayerProfile& profile, const ProfileFacts& facts) {
  const double megabytes = 1e-6 * static_cast<double>(facts.gradient_bytes);
  const double compute_seconds = facts.forward_seconds + facts.backward_seconds;
  return fmt::format(kHeader, profile.name, profile.name, profile.source,
                     1e3 * facts.forward_seconds, 1e3 * facts.backward_seconds, megabytes,
                     compute_seconds > 0 ? 8 * megabytes / compute_seconds : 0);
}

// In the order of the forward pass.
std::string Model(const LayerProfile& profile) {
  const double forward_per_backward = profile.forward_ms / BackwardMs(profile);
  std::string text = "model {\n  net {\n";
  int id = 0;
  for (size_t i = profile.layers.size(); i-- > 0; ++id) {
    const ProfileLayer& layer = profile.layers[i];
    text += fmt::format(
        "    layer {{ name: \"{}\" profile_layer {{ id: {} forward_us: {:.0f} backward_us: {:.0f} "
        "parameters: {} }} }}\n",
        layer.name, id, 1e3 * layer.backward_ms * forward_per_backward, 1e3 * layer.backward_ms,
        Parameters(layer));
  }
  return text + "  }\n}\n\n";
}

}  // namespace

Result<ProfileFacts> GetProfileFacts(std::string_view name, const ProfileOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  ENGINE_ASSIGN_OR_RETURN(const LayerProfile profile, FindProfile(name));
  return FactsOf(profile, options);
}

Result<std::string> ProfileConfig(std::string_view name, const ProfileOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  ENGINE_ASSIGN_OR_RETURN(const LayerProfile profile, FindProfile(name));
  // The layers pass their input on: it has as many numbers as there are classes, and needs no head.
  return fmt::format(
      "{}seed: {}\n\n{}"
      "data {{ synthetic {{ samples: 1024 eval_samples: 16 shape: 2 classes: 2 }} }}\n\n"
      "train {{\n  steps: {}\n  batch_per_rank: 4\n  learning_rate {{ base: 0.001 }}\n"
      "  evaluate_every: -1\n}}\n\n"
      "plugins: [\"{}\", \"{}\", \"sgd\", \"cpu_ops\", \"profile_ops\"]\n"
      "profile_ops {{ time_scale: {:.9g} size_scale: {:.9g} jitter: {:.9g} }}\n"
      "cpu_ops {{ threads: 1 }}  # the loss is all the arithmetic there is\n",
      Header(profile, FactsOf(profile, options)), options.seed, Model(profile), options.steps,
      options.communicator, options.scheduler, options.time_scale, options.bytes_scale,
      options.jitter);
}

}  // namespace engine::bench
