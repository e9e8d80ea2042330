// Hands transfers to one communicator, for all who have some: the thread that pumps, ops that gather,
// what comes between steps.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "core/base/call_watch.h"
#include "engine/ext/grouped_transfers.h"
#include "engine/ext/wire_progress.h"

namespace engine::exec {

// Beyond the deadline of a transfer, for a communicator that does not keep it.
constexpr int64_t kGraceMs = 5000;

class Submitter {
 public:
  // `communicator` is borrowed, and so is `watch`, which may be null.
  Submitter(Communicator& communicator, const std::string& name, base::CallWatch* watch);

  Communicator& communicator() const { return communicator_; }
  // Whether several transfers can be one.
  bool groups() const { return groups_ != nullptr; }
  // To tell a slow transfer from one that stands still; 0 where the communicator does not say.
  uint64_t bytes_moved() const { return wire_ != nullptr ? wire_->bytes_moved() : 0; }

  // Starts a transfer, or several as a group. kPlugin when there is no work after that. One thread
  // at a time is in the communicator. [any-thread]
  Status Submit(Array<const Transfer> transfers, Work** work);
  // The same, and waits for the end; or `follower` does, if that is not null. [compute-lane]
  Status Run(Array<const Transfer> transfers, Stream* follower = nullptr);
  // How a work has ended, which is gone then. kPlugin, and it stays, when that is not true. [any-thread]
  Status Take(Work** work) const;

  // After Abort: waits for what Run has not seen the end of. False when that does not come: then what
  // these transfers move may still be written.
  bool Drain(int64_t timeout_ms);

 private:
  // As WaitHost, but goes on as long as anything moves.
  Status Await(Work* work, int64_t timeout_ms);
  Status Named(const Status& answer) const;

  Communicator& communicator_;
  const std::string name_;
  GroupedTransfers* const groups_;
  WireProgress* const wire_;  // or null
  base::CallWatch* const watch_;
  const base::CallWatch::Call* run_ = nullptr;  // with the longest deadline so far
  std::mutex mutex_;                            // held in Submit alone
  std::vector<Work*> not_ended_;                // of the compute lane
};

}  // namespace engine::exec
