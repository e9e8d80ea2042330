// What ranks tell each other when something is wrong. NCCL tells none of it: a rank whose peer has
// gone waits, or hears that some peer has.
//
//   <prefix>/roll           := ''                     everybody says how far it has come
//   value of <prefix>/count := transfers submitted, in decimal (kit/rendezvous.h)
//   <prefix>/end/<rank>     := code ' ' blamed rank ' ' message     or ''
//                              this rank has failed; empty: its user has aborted it
//   <prefix>/failed         := rank of an end/<rank>
//
// <rank> counts among the members of the communicator; in words and blame it is a rank of the run.
// Nothing is written or read while transfers end: see Pipeline for when it looks.
#pragma once

#include <string>

#include "engine/host.h"
#include "engine/status.h"
#include "kit/failure.h"
#include "kit/rendezvous.h"

namespace engine::nccl {

// For one thread. In a world of one there is nobody to talk to, and nothing happens.
class LivenessCheck {
 public:
  // `failure` ends every wait in here.
  LivenessCheck(Host& host, kit::Members members, const kit::Failure& failure);

  // Answers a liveness check, which takes the first rank until the others have answered or some 0.7 s,
  // and returns the failure of another rank if there is one: what it says, or kPeerLost when its
  // user has aborted it. `submitted`: by this rank.
  Status Look(uint64_t submitted) noexcept;

  // The cause of `error`, which this rank found after it had submitted `submitted` transfers:
  // another rank's failure if that came first, else `error` with the blame and the words for it.
  // `waiting_for`: how many transfers a rank must have submitted not to be to blame. About a
  // second; two if the first rank does not answer.
  Status Investigate(const Status& error, uint64_t submitted, uint64_t waiting_for) noexcept;

  // Tells the others that this rank has failed, unless it has that from one of them.
  void Publish(const Status& reason, bool by_caller) noexcept;

 private:
  bool Has(const std::string& key) noexcept;
  bool Get(const std::string& key, std::string* text) noexcept;
  Status Answer(uint64_t submitted);
  Result<kit::Values> Gather();
  Status OthersFailure();

  Host& host_;
  const kit::Members members_;
  const kit::Failure& failure_;
  bool answered_ = false;
  bool heard_ = false;  // of another rank's failure
};

}  // namespace engine::nccl
