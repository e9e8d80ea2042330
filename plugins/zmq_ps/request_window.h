// Which requests of one worker have been seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace engine::zmq_ps {

// Numbers come from 1 upwards, some late, some twice. Memory is bounded by kWidth.
class RequestWindow {
 public:
  static constexpr uint64_t kWidth = 1 << 16;

  enum class Verdict { kNew, kSeen, kTooFar };

  Verdict Check(uint64_t request) const {
    if (request <= complete_ || ahead_.count(request) > 0) return Verdict::kSeen;
    return request > complete_ + kWidth ? Verdict::kTooFar : Verdict::kNew;
  }
  // For a request that is kNew.
  void Mark(uint64_t request) {
    ahead_.insert(request);
    while (ahead_.erase(complete_ + 1) > 0) ++complete_;
  }

 private:
  uint64_t complete_ = 0;               // all up to here were seen
  std::unordered_set<uint64_t> ahead_;  // and these
};

}  // namespace engine::zmq_ps
