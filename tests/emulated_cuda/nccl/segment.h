// Memory that the ranks of one communicator of the fake NCCL share, in one process or in several.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fake_nccl {

constexpr int kMaxRanks = 16;
constexpr size_t kStageBytes = size_t{256} << 10;

// What a rank says it does; ranks that differ never meet, as with NCCL.
struct Call {
  int32_t kind = 0, type = 0, operation = 0, root = 0;
  uint64_t count = 0;
  uint64_t group_size = 1;    // collectives in its group
  uint64_t group_digest = 0;  // of all of them
  bool operator==(const Call&) const = default;
};

// What a rank wants of a split.
struct SplitRequest {
  int32_t color = 0, key = 0;
};

struct Slot {
  std::atomic<uint32_t> joined;   // 1: this rank is here
  std::atomic<uint32_t> left;     // 1: it has destroyed or aborted its communicator
  std::atomic<uint64_t> windows;  // registered so far
  std::atomic<uint64_t> splits;   // begun so far; publishes requests[splits % 2]
  SplitRequest requests[2];       // no rank is two splits ahead of another
  std::atomic<uint64_t> round;    // publishes calls[round % 2] and `stage`
  Call calls[2];                  // no rank is two rounds ahead of another
  alignas(64) uint8_t stage[kStageBytes];
};

struct Shared {
  Slot slots[kMaxRanks];
};

// A view of it by one rank.
class Segment {
 public:
  // Makes a new one under a name that nobody has, which begins with this process; empty on failure.
  // What killed processes have left is removed first, what nobody joins at the end.
  static std::string MakeName();
  // Null when there is none of that name.
  static std::unique_ptr<Segment> Join(const std::string& name, int rank);
  // The part that this rank has of a split: the first to come makes it.
  std::unique_ptr<Segment> JoinPart(uint64_t split, int color, int rank) const;
  ~Segment();

  Slot& slot(int rank) { return shared_->slots[rank]; }
  // Whether the process of a rank that had joined has ended without leaving.
  bool Died(int rank);
  // From JoinPart. Whoever comes late to one makes another, which must go as well.
  bool is_part() const { return is_part_; }
  // Nobody can join any more.
  void Unlink();

 private:
  Segment() = default;

  std::string name_;
  int descriptor_ = -1;
  int rank_ = 0;
  bool is_part_ = false;
  Shared* shared_ = nullptr;
};

}  // namespace fake_nccl
