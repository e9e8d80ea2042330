// A profile as a configuration. The text is the reviewed form of configs/profile_*.pbtxt, which a
// test compares with it.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "bench/profile/profile.h"

namespace engine::bench {
namespace {

constexpr double kBytesPerParameter = 4;
constexpr double kLargestScale = 1000;

__attribute__((format(printf, 2, 3))) void Append(std::string* text, const char* format, ...) {
  char part[2048];
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(part, sizeof part, format, args);
  va_end(args);
  ENGINE_CHECK(length < static_cast<int>(sizeof part), "%d", length);
  *text += part;
}

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
  facts.layers = static_cast<int>(profile.layers.size());
  for (const ProfileLayer& layer : profile.layers) {
    const int64_t bytes = ScaledBytes(layer, options.bytes_scale);
    facts.gradient_bytes += bytes;
    facts.largest_layer_bytes = std::max(facts.largest_layer_bytes, bytes);
    facts.first_layer_bytes = bytes;
  }
  return facts;
}

constexpr const char* kHeader =
    R"(# The layer profile of a real network, with sleeps in place of its arithmetic: what is measured
# is the scheduler and the communicator. bench/profile/profile_config.cc writes this file.
#
#   engine run configs/profile_%s.pbtxt -n 2
#   engine run configs/profile_%s.pbtxt -n 2 --plugins priority_sched
#
# %s.
# The time of the forward pass (with the optimizer) is known as a whole: each layer has a share in
# proportion to its backward time. With the scales below, a step has %.1f ms of forward and %.1f ms
# of backward pass, and gradients of %.1f MB, which two ranks exchange in as long at %.0f Mbit/s.
# docs/link_emulation.md says what to expect of which scheduler.

)";

void AppendHeader(const LayerProfile& profile, const ProfileFacts& facts, std::string* text) {
  const std::string name(profile.name), source(profile.source);
  const double megabytes = 1e-6 * static_cast<double>(facts.gradient_bytes);
  const double compute_seconds = facts.forward_seconds + facts.backward_seconds;
  Append(text, kHeader, name.c_str(), name.c_str(), source.c_str(), 1e3 * facts.forward_seconds,
         1e3 * facts.backward_seconds, megabytes,
         compute_seconds > 0 ? 8 * megabytes / compute_seconds : 0);
}

// In the order of the forward pass.
void AppendModel(const LayerProfile& profile, std::string* text) {
  const double forward_per_backward = profile.forward_ms / BackwardMs(profile);
  *text += "model {\n  net {\n";
  int id = 0;
  for (size_t i = profile.layers.size(); i-- > 0; ++id) {
    const ProfileLayer& layer = profile.layers[i];
    Append(text,
           "    layer { name: \"%s\" profile_layer { id: %d forward_us: %.0f backward_us: %.0f "
           "parameters: %lld } }\n",
           layer.name, id, 1e3 * layer.backward_ms * forward_per_backward, 1e3 * layer.backward_ms,
           static_cast<long long>(Parameters(layer)));
  }
  *text += "  }\n}\n\n";
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
  std::string text;
  AppendHeader(profile, FactsOf(profile, options), &text);
  Append(&text, "seed: %llu\n\n", static_cast<unsigned long long>(options.seed));
  AppendModel(profile, &text);
  // The layers pass their input on: it has as many numbers as there are classes, and needs no head.
  text += "data { synthetic { samples: 1024 eval_samples: 16 shape: 2 classes: 2 } }\n\n";
  Append(&text,
         "train {\n  steps: %lld\n  batch_per_rank: 4\n  learning_rate { base: 0.001 }\n"
         "  evaluate_every: -1\n}\n\n",
         static_cast<long long>(options.steps));
  Append(&text, "plugins: [\"%s\", \"%s\", \"sgd\", \"cpu_ops\", \"profile_ops\"]\n",
         options.communicator.c_str(), options.scheduler.c_str());
  Append(&text, "profile_ops { time_scale: %.9g size_scale: %.9g jitter: %.9g }\n",
         options.time_scale, options.bytes_scale, options.jitter);
  text += "cpu_ops { threads: 1 }  # the loss is all the arithmetic there is\n";
  return text;
}

}  // namespace engine::bench
