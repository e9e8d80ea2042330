// One order of transfers on all ranks, and the proof of it.
//
// A scheduler with a static order needs no message. With TransferOrder::kLeader rank 0 posts a
// ticket for each transfer as it starts it; the others start what the tickets say, in that order,
// each as soon as it is ready there. Rank 0 has several transfers under way, so the tickets of the
// next ones travel while the network is busy with those before.
//
// Whatever the order came from, every rank logs what it starts. Ranks that disagree are found
// 1. by a communicator that compares keys on the wire (tcp does),
// 2. by a digest of the log that travels with the statistics of each step,
// 3. by comparing the logs when a transfer fails or times out,
// and the first transfer that differs is named on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/store.h"
#include "core/exec/task_graph.h"
#include "engine/communicator.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine {

struct Ticket {
  uint64_t sequence = 0;
  uint64_t key = 0;
  uint32_t task = 0;
};

// Tickets as they travel, 20 bytes each, little-endian.
std::string EncodeTicket(const Ticket& ticket);
// kBadData when `text` is none.
Result<Ticket> DecodeTicket(std::string_view text);

// What this rank has started, the newest first forgotten last.
class OrderLog {
 public:
  OrderLog() : issues_(kCapacity) {}
  void Add(const Transfer& transfer, uint32_t task) noexcept;

  // A digest of everything started so far as 16 numbers, each 0 or 1, so that its sum over ranks is
  // exact: where ranks agree each sum is 0 or the number of ranks.
  static constexpr size_t kDigestBits = 16;
  std::array<float, kDigestBits> DigestBits() const noexcept;

  struct Issue {
    uint64_t sequence = 0;
    uint64_t key = 0;
    int64_t count = 0;
    uint32_t task = 0;
    int32_t kind = 0;
    int32_t dtype = 0;
    uint32_t unit = kNoUnit;
    bool operator==(const Issue&) const = default;
  };
  // Oldest first, as bytes for other ranks.
  std::string Encode() const;
  static Result<std::vector<Issue>> Decode(std::string_view text);

 private:
  static constexpr size_t kCapacity = 256;
  std::vector<Issue> issues_;  // a ring
  uint64_t count_ = 0;
  uint64_t digest_ = 0;
};

// After a failure: publishes the own log and compares those of the other ranks that appear within
// `timeout_ms` in all. An error that names the first transfer that differs and both its versions,
// or OK when none does. Called on every rank that failed.
Status CompareLogs(const OrderLog& log, const TaskGraph& graph, const RankInfo& rank, Store& store,
                   int64_t timeout_ms);

}  // namespace engine
