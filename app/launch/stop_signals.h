// Signals that ask a run to stop, as something to poll for, without handlers and without globals.
#pragma once

#include <signal.h>

#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "engine/status.h"
#include "kit/unique_fd.h"

namespace engine::launch {

// A terminal sends INT and, when it goes, HUP; Slurm TERM and, with --signal=USR1@60, USR1.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// Blocks these in the calling thread and in every thread and process that it starts
// from then on; the destructor restores the mask. A signal that this process was told to ignore
// (nohup, a background job of a shell) stays ignored. Throws std::system_error when the process has
// no descriptor left.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return fd_.get(); }  // readable when a signal has arrived
  // The next signal, or 0. In a forked child: the signals of that child. One within a second of the
  // first is the same request to stop, and dropped: timeout(1), systemd, Slurm and terminals signal
  // a process and its group. One thread of a process reads.
  int Read() const;
  // Ends this process by `signal`, as if it had never been blocked.
  void Die(int signal) const;

 private:
  sigset_t previous_mask_;
  mutable std::optional<base::TimePoint> next_counts_from_;  // since the first
  kit::UniqueFd fd_;
};

std::string SignalName(int signal);  // "SIGINT", for messages
Status StoppedBeforeTheStart(int signal);

}  // namespace engine::launch
