// What moves in a communicator, and who is behind when nothing does.
//
// A deadline bounds the time in which nothing moves: no byte of this rank, and none of those that
// it waits for, which may wait for others. So while a transfer takes long, each rank tells through
// the store of its host how far it is:
//
//   <prefix>/at/<rank> := beat ' ' bytes {' ' begun ' ' waiting for}
//
// in decimal; the last two for each lane. `beat` grows each time: one that stays shows a rank that
// is stopped or cut off. A rank that stands still follows "waiting for" from rank to rank until
// one has moved since, or is behind. Where transfers end in their usual time nothing is written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/ext/wire_progress.h"
#include "engine/host.h"
#include "kit/deadline.h"
#include "kit/rendezvous.h"

namespace engine::kit {

class Progress final : public WireProgressBase {
 public:
  // Where a rank is on one lane.
  struct Place {
    uint64_t begun = 0;        // transfers so far: all ranks begin the same ones in the same order
    int32_t waiting_for = -1;  // a rank, or -1
  };
  struct Behind {
    int32_t rank = -1;  // -1: nobody knows
    const char* why = "";
  };

  Progress() = default;  // tells and asks nobody
  // Borrows `host`. `prefix` is that of the communicator's keys.
  Progress(Host& host, std::string prefix)
      : host_(&host),
        prefix_(std::move(prefix)),
        seen_(static_cast<size_t>(host.rank_info().world_size)) {}

  // By this rank. [any-thread]
  void Moved(uint64_t bytes) noexcept {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    last_ns_.store(CoarseNow().time_since_epoch().count(), std::memory_order_relaxed);
  }
  // When anything last moved, here or where this rank looked. [any-thread]
  Clock::time_point last() const noexcept {
    return Clock::time_point(std::chrono::nanoseconds(last_ns_.load(std::memory_order_relaxed)));
  }
  uint64_t bytes_moved() const noexcept override {
    return bytes_.load(std::memory_order_relaxed) + elsewhere_.load(std::memory_order_relaxed);
  }

  // ---- The rest is for one thread.

  void Tell(std::span<const Place> lanes) noexcept {
    if (!host_) return;
    try {
      std::ostringstream text;
      text << ++beat_ << ' ' << bytes_.load(std::memory_order_relaxed);
      for (const Place& lane : lanes) text << ' ' << lane.begun << ' ' << lane.waiting_for;
      (void)SetText(*host_, Key(host_->rank_info().rank), text.str());
    } catch (const std::exception&) {
      // No memory for the text: the next time.
    }
  }

  // Whom this rank waits for in the end, when it is at `own` on `lane`. Counts what has moved there
  // since the last call as progress. A rank that has told nothing for `silence` is behind.
  Behind WhoIsBehind(size_t lane, const Place& own, Clock::duration silence) noexcept {
    if (!host_ || own.waiting_for < 0) return {own.waiting_for, ""};
    try {
      Place place = own;  // of a rank that waits
      for (size_t hop = 0; hop < seen_.size(); ++hop) {
        const int32_t rank = place.waiting_for;
        if (rank == host_->rank_info().rank) break;
        Seen& seen = seen_[static_cast<size_t>(rank)];
        const Place there = Read(rank, lane, &seen);
        const bool silent = Clock::now() - seen.changed > silence;
        if (silent || there.begun > place.begun || there.waiting_for < 0) {
          const bool has_come = there.begun >= place.begun;
          return {rank, !has_come ? ", which has not come to it"
                        : silent  ? ", which does not answer"
                                  : ""};
        }
        place = there;  // perhaps in a transfer before this one
      }
    } catch (const std::exception&) {
      // No memory for a key.
    }
    return {own.waiting_for, ""};  // each waits for the next: a connection fails
  }

 private:
  struct Seen {
    uint64_t beat = 0, bytes = 0;
    Clock::time_point changed;  // when `beat` was seen to
  };
  static constexpr int64_t kAnswerMs = 1000;

  std::string Key(int32_t rank) const { return prefix_ + "/at/" + std::to_string(rank); }

  // Begun nothing: it has told nothing.
  Place Read(int32_t rank, size_t lane, Seen* seen) {
    uint32_t told = 0;
    std::string text;
    if (!host_->StoreHas(Key(rank), &told).ok() || !told) return {};
    if (!StoreGetString(*host_, Key(rank), kAnswerMs, &text).ok()) return {};
    std::istringstream fields(text);
    uint64_t beat = 0, bytes = 0;
    Place place;
    fields >> beat >> bytes;
    for (size_t i = 0; i <= lane; ++i) fields >> place.begun >> place.waiting_for;
    const bool known = place.waiting_for < static_cast<int32_t>(seen_.size());
    if (!fields || !known) return {};
    if (beat != seen->beat) seen->changed = Clock::now();
    if (seen->beat != 0 && bytes != seen->bytes) {
      elsewhere_.fetch_add(1, std::memory_order_relaxed);
      Moved(0);
    }
    seen->beat = beat;
    seen->bytes = bytes;
    return place;
  }

  Host* const host_ = nullptr;
  const std::string prefix_;
  std::atomic<uint64_t> bytes_{0}, elsewhere_{0};  // these three publish nothing
  std::atomic<int64_t> last_ns_{0};
  uint64_t beat_ = 0;       // these two of the one thread
  std::vector<Seen> seen_;  // by rank
};

}  // namespace engine::kit
