// Pushes and pulls on the links of a served run, in simulated time.
//
// All ranks are alike, so one stands for all, and what it pulls is released when it has been
// pushed. A transfer is spread over all servers evenly, and sent in parts; before each part whoever
// sends takes the most urgent transfer, then the one that came first.
//
//   servers of their own   a rank sends pushes one way and receives pulls the other way. N ranks
//                          share the links of S servers, so with N > S these are the bottleneck.
//   inside of the ranks    1/N of the bytes stay at home. Each rank sends its pushes and answers
//                          the pulls of others: both go both ways, on one link.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tools/simulate/network.h"

namespace engine::simulate {

// Bytes that a transfer of `size_bytes` puts on the busiest link, in its direction.
double ServedLinkBytes(const NetworkModel& model, uint64_t size_bytes, int32_t ranks);

// Times never decrease from call to call.
class ServedLink {
 public:
  ServedLink(const NetworkModel& model, int32_t ranks);

  // A kPush or kPull of task `id`. `now_ns` is at most NextEvent().
  void Submit(uint32_t id, TransferKind kind, uint64_t size_bytes, int32_t priority,
              int64_t now_ns);

  // When something happens next, or Network::kNever. Not every such moment ends a transfer.
  int64_t NextEvent() const;
  // Appends the tasks whose transfers end until `now_ns`, which is at most NextEvent().
  void AdvanceTo(int64_t now_ns, std::vector<uint32_t>* ended);

 private:
  struct Flow {
    uint32_t id = 0;
    bool is_push = false;
    int32_t priority = 0;
    uint64_t number = 0;    // in order of arrival
    int64_t from_ns = 0;    // when it may send
    double bytes_left = 0;  // that have not been sent and are not being sent
  };
  // One direction.
  struct Way {
    std::vector<Flow> flows;
    int64_t free_at_ns = 0;  // when the part that is on the link has passed
    double tokens = 0;       // of its bucket, at that time
  };

  static std::vector<Flow>::iterator MostUrgent(Way& way, int64_t now_ns);
  Way& WayOf(TransferKind kind);
  void SendPart(Way& way, std::vector<Flow>::iterator flow, int64_t now_ns);

  const NetworkModel model_;
  const int32_t ranks_;
  const double bytes_per_ns_;
  const double burst_bytes_;
  Way ways_[2];
  std::vector<std::pair<int64_t, uint32_t>> arriving_;  // ends, and tasks
  uint64_t submitted_ = 0;
};

}  // namespace engine::simulate
