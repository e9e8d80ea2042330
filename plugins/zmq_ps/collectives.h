// Collectives at a server: slices of transfers that ranks push to be reduced or passed on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "offload.h"
#include "session.h"

namespace engine::zmq_ps {

// All of the server's thread.
class Collectives {
 public:
  // `skips_lost`: ranks that are lost are left out of what they do not alone have. Borrows
  // `sessions`, one per rank, and `offload`.
  Collectives(bool skips_lost, std::vector<Session>& sessions, Offload& offload)
      : skips_lost_(skips_lost), sessions_(sessions), offload_(offload) {}

  // A new request of its session.
  void Handle(const Header& push, ::zmq::message_t body);
  // When Session::left() says so.
  void RankLeft(uint32_t worker);
  // The ranks that a request waits for.
  std::vector<uint32_t> Missing(const Header& push) const;
  // Ends its round for all.
  void Refuse(const Header& push, const Status& reason);

  // The last round without a key that was begun.
  uint64_t last_keyless_round() const noexcept { return last_keyless_round_; }

 private:
  using RoundId = std::tuple<uint64_t, uint64_t, uint32_t>;  // key, round, slice
  struct Arrival {
    bool arrived = false;
    bool excused = false;  // goes on without it
    uint64_t request = 0;  // to be answered; 0: nobody is there any more
    ::zmq::message_t data;
  };
  struct Round {
    RoundId id;
    Header first;                   // the push that began it: what all others must be like
    std::vector<Arrival> arrivals;  // by rank
    Status refusal;                 // not OK: whoever comes gets it
    bool folding = false;
  };

  Round& FindOrOpen(const Header& push);
  Status Check(const Round& round, const Header& push) const;
  std::vector<uint32_t> Missing(const Round& round) const;
  std::optional<Status> FindLost(Round& round) const;
  void Advance(Round& round);
  void Finish(Round& round, ::zmq::message_t result);
  void Refuse(Round& round, const Status& reason);
  void EraseIfOver(const Round& round);
  std::vector<Round*> OpenRounds();

  const bool skips_lost_;
  std::vector<Session>& sessions_;
  Offload& offload_;
  std::map<RoundId, std::unique_ptr<Round>> rounds_;
  uint64_t last_keyless_round_ = 0;
};

}  // namespace engine::zmq_ps
