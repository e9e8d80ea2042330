// Cuts and fuses parameters into buckets: the body of Scheduler::Plan. Like scheduler_kit.h compiled
// into the plugin that includes it and no part of the ABI.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/scheduler.h"
#include "kit/scheduler.h"

namespace engine::kit {

// Of an option in bytes, its default: as much as suits the device.
constexpr int64_t kByDevice = -1;
// Between accelerators the start of a transfer costs as much as some MiB of it, and on each side
// every bucket is a launch of the update.
constexpr int64_t kAcceleratorBucketBytes = 32 << 20;

// The bytes that an option gives; where that is kByDevice, those of one of the two.
inline int64_t BytesFor(const ModelInfo& model, int64_t given, int64_t on_host,
                        int64_t on_accelerator = kAcceleratorBucketBytes) noexcept {
  if (given != kByDevice) return given;
  return model.accelerator != 0 ? on_accelerator : on_host;
}

struct BucketRules {
  int64_t first_bytes =
      INT64_MAX;            // a bucket is closed as soon as it holds so much: the first one,
  int64_t fuse_bytes = 0;   // if that is less, and every one; 0: each parameter alone
  int64_t slice_bytes = 0;  // no bucket is larger (but for one ModelInfo::slice_multiple): larger
                            // parameters are cut into slices of about equal size; 0: never cut
  bool by_need = false;     // priorities are those of the next forward pass, and the parameters
                            // that it needs at its very beginning travel with no others; else all
                            // have one priority, so that whoever orders by it keeps their order
  BucketStages stages = BucketStages::kAllReduce;
};

// Makes buckets of parameters that become ready one after another. ParameterInfo::alone comes before
// all rules: such a parameter is a bucket of its own, whatever its size.
class BucketPlanner {
 public:
  BucketPlanner(const ModelInfo& model, const BucketRules& rules, PlanSink& sink) noexcept
      : rules_(rules), sink_(sink), multiple_(std::max<int64_t>(model.slice_multiple, 1)) {
    for (const ParameterInfo& parameter : model.parameters) {
      first_needed_ = std::min(first_needed_, parameter.first_use);
    }
  }

  void Add(const ParameterInfo& parameter) {
    if (parameter.alone != 0) {
      Close();
      Take(parameter, 0, parameter.count);
      Close();
      return;
    }
    const bool is_first_needed = parameter.first_use == first_needed_;
    if (rules_.by_need && is_first_needed != (need_ == first_needed_)) Close();
    int64_t offset = 0;
    while (offset < parameter.count) {
      const int64_t left = parameter.count - offset;
      const int64_t count = Fitting(left);
      if (count == 0) {
        Close();
        continue;
      }
      Take(parameter, offset, count);
      offset += count;
      if (count < parameter.count || held_ * kElementBytes >= Cap()) Close();
    }
  }

  void Close() {
    if (bucket_.empty()) return;
    const int32_t priority = rules_.by_need ? -static_cast<int32_t>(need_) : 0;
    sink_.AddBucket(bucket_, priority, rules_.stages);
    ++bucket_count_;
    bucket_.clear();
    held_ = 0;
    need_ = UINT32_MAX;
  }

 private:
  void Take(const ParameterInfo& parameter, int64_t offset, int64_t count) {
    bucket_.push_back({.parameter = parameter.id, .offset = offset, .count = count});
    held_ += count;
    need_ = std::min(need_, parameter.first_use);
  }

  static constexpr int64_t kElementBytes = sizeof(float);

  int64_t Cap() const noexcept {
    return bucket_count_ == 0 ? std::min(rules_.first_bytes, rules_.fuse_bytes) : rules_.fuse_bytes;
  }

  // How many of the `left` elements of a parameter go into the open bucket; 0: close it first.
  int64_t Fitting(int64_t left) const noexcept {
    if (rules_.slice_bytes == 0) return left;
    const int64_t limit = rules_.slice_bytes / kElementBytes;
    if (held_ + left <= limit) return left;
    // Few buckets of equal size, whose ends are multiples inside of the parameter.
    const int64_t buckets = (held_ + left + limit - 1) / std::max<int64_t>(limit, 1);
    const int64_t share = (held_ + left + buckets - 1) / buckets - held_;
    const int64_t room = (limit - held_) / multiple_ * multiple_;
    const int64_t count = std::min((share + multiple_ - 1) / multiple_ * multiple_, room);
    if (count > 0) return std::min(count, left);
    return bucket_.empty() ? std::min(multiple_, left) : 0;
  }

  const BucketRules rules_;
  PlanSink& sink_;
  const int64_t multiple_;
  uint32_t first_needed_ = UINT32_MAX;
  std::vector<BucketSpan> bucket_;  // the open one
  int64_t held_ = 0;                // its elements
  uint32_t need_ = UINT32_MAX;      // its smallest first_use
  size_t bucket_count_ = 0;         // closed
};

inline Status PlanBuckets(const char* plugin, const ModelInfo& model, const BucketRules& rules,
                          PlanSink& sink) noexcept {
  return NoThrow(plugin, [&] {
    BucketPlanner planner(model, rules, sink);
    for (const ParameterInfo& parameter : model.parameters) planner.Add(parameter);
    planner.Close();
  });
}

}  // namespace engine::kit
