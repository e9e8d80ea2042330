// Every deadline of the control channel, and what must hold between them. Those of LaunchOptions
// are defaults. The others follow communication.timeout_ms, T, or are the end of such a wait:
//
//   a transfer                  T without progress (engine/communicator.h); a communicator that does
//                               not keep it, T + exec::kGraceMs
//   a blocking transfer         the same; where nobody knows when ranks come, of as long as
//                               ExecutorOptions::arrival_timeout_ms: who is lost is found by liveness
//   Submit                      T (core/exec/step_runner.cc)
//   any other call of a plugin  base::kCallTimeouts * T (core/base/call_watch.h), as for a device and
//                               for the next batch
//   an aborted communicator     a second by its contract; ExecutorOptions::drain_ms
//   ranks that find each other  communication.rendezvous_timeout_ms, also in a communicator
//
// A thread that is joined ends with what it works for; where a plugin keeps it, the process is ended
// (kHangingProcessMs).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/call_watch.h"

namespace engine::launch {

// One look at sockets, signals and clocks; rank 0 of kJoin looks more often while its body runs.
inline constexpr int kPollMs = 200;
inline constexpr int kJoinPollMs = 50;

// Rendezvous. A member that waits for a run waits longer than the run does, to be told who is
// missing.
inline constexpr int64_t kRendezvousTimeoutMs = 30000;  // LaunchOptions
inline constexpr int64_t kRendezvousGraceMs = 3000;
inline constexpr int kConnectAttemptMs = 2000;     // then the next address is tried
inline constexpr int64_t kHelloTimeoutMs = 10000;  // of a pending connection: to say who it is
// While slots are scarce; more than a round trip, so that members that come at once are not lost.
inline constexpr int64_t kScarceHelloMs = 500;
inline constexpr int64_t kRefusalLineMs = 1000;  // between two lines on refused connections
// After the rendezvous: a second process of the same number shows that two runs have met.
inline constexpr int64_t kTwoRunsMs = 5000;

// Liveness. Either end of a connection hears something of the other this often, and gives it up when
// it has heard nothing for as long as a transfer may stand still, and a little more: the message of
// the transfer says more. So there is one limit for the user (communication.timeout_ms), and whoever
// stops a rank in a debugger raises that. Time in which the watching process itself stands still
// does not count (app/launch/membership.h).
inline constexpr int64_t kPingMs = 500;
inline constexpr int64_t kLivenessMarginMs = 500;
inline constexpr int64_t kTransferTimeoutMs = 30000;  // communication.timeout_ms
// A timeout of one member is explained by another one's silence that has lasted so long.
inline constexpr int64_t kSuspectMs = 1500;
// Also where transfers have less than it takes to hear of a healthy peer several times.
constexpr int64_t LivenessTimeoutMs(int64_t transfer_ms) {
  return std::max(transfer_ms, kSuspectMs) + kLivenessMarginMs;
}
inline constexpr int64_t kLivenessTimeoutMs =
    LivenessTimeoutMs(kTransferTimeoutMs);  // LaunchOptions

// For somebody to read standard error, before lines are dropped.
inline constexpr int64_t kUnreadMs = 1000;

// To say how a member ended, and for the server to close after that.
inline constexpr int64_t kReportTimeoutMs = 1000;
inline constexpr int64_t kFlushMs = 500;  // of the server, for its last messages

// The end. From the first rank that has left well; from a request to stop, for the step at hand; for
// rank 0 to write more of a checkpoint that others wait for.
inline constexpr int64_t kLeaveTimeoutMs = 60000;  // LaunchOptions
inline constexpr int64_t kStopTimeoutMs = 120000;  // LaunchOptions
inline constexpr int64_t kServerLeaveMs = 5000;    // LaunchOptions; from the last rank
inline constexpr int64_t kServerEndMs = 2000;      // of them to notice by itself, then it is ended
inline constexpr int64_t kProgressTimeoutMs = 60000;
inline constexpr int64_t kProgressEveryMs = 1000;  // how often rank 0 says how much it has written
// For rank 0 to finish what it does alone at the end of a run: a stopped process is found by
// liveness, a plugin that hangs by the rank itself.
inline constexpr int64_t kFinishTimeoutMs = 24 * 3600 * 1000;
// For a server whose ranks are done to be told so by the launcher.
inline constexpr int64_t kRanksLeftTimeoutMs = 2 * kLeaveTimeoutMs;

// After a failure. A secondary failure waits for its cause to show.
inline constexpr int64_t kDefaultGraceMs = 1500;  // LaunchOptions
inline constexpr int64_t kSecondaryFailureMs = 1000;
inline constexpr int64_t kExitMs = 300;     // of a process that has closed its connection
inline constexpr int64_t kKilledMs = 5000;  // of a process that was killed
inline constexpr int64_t kHangMs = 10000;   // of a thread, beyond the grace: it cannot be killed
// Of a process beyond the grace: nobody may be there to kill it, so it ends itself.
inline constexpr int64_t kHangingProcessMs = 1500;
// timeout(1), systemd, Slurm and launchers signal a process and its group; a person is slower.
inline constexpr int64_t kSecondSignalMs = 1000;

// A member hears who is missing before it gives up by itself.
static_assert(kRendezvousGraceMs > kReportTimeoutMs + kPollMs);
// A healthy peer is heard several times before its silence explains anything, and is given up only
// later.
static_assert(2 * (kPingMs + kPollMs) < kSuspectMs && kSuspectMs < LivenessTimeoutMs(0));
// A member that is silent is found within its limit and 2 s.
static_assert(kLivenessMarginMs + kPingMs + 2 * kPollMs < 2000);
// Both sides of a cut link have ended 5 s after the deadline of a transfer.
static_assert(kLivenessMarginMs + kPingMs + kDefaultGraceMs + kHangingProcessMs < 5000 - kPollMs);
// Progress is told several times before its absence is a failure; the launcher of a rank that hangs
// speaks before its servers do.
static_assert(5 * kProgressEveryMs < kProgressTimeoutMs && kLeaveTimeoutMs < kRanksLeftTimeoutMs);
static_assert(kServerEndMs + kPingMs < kServerLeaveMs);
// Whoever waits for a member that hangs in a plugin, for a transfer, a batch or its end, gives up
// before the watch does, which then has seen the call for long enough.
static_assert(base::kCallTimeouts > 2 &&
              kLeaveTimeoutMs < base::kCallTimeouts * kTransferTimeoutMs);
static_assert(4 * base::kCallLookMs < kTransferTimeoutMs);
// A pending connection is not kept longer than a rendezvous.
static_assert(kHelloTimeoutMs < kRendezvousTimeoutMs);
// The server takes a report in the time that the member gives it.
static_assert(kFlushMs < kReportTimeoutMs && kPollMs < kFlushMs);
// The cause shows, and is told, before the members that failed of it are killed.
static_assert(kSecondaryFailureMs + kPollMs < kDefaultGraceMs);
// A plugin that hangs while others end is named before its process is killed.
static_assert(base::kCallEndMs + base::kCallLookMs + kPollMs < kDefaultGraceMs);
// A line that nobody reads costs less than the grace.
static_assert(kUnreadMs < kDefaultGraceMs);
// How a process ended is known before its members' reports are waited for no more.
static_assert(kExitMs < kReportTimeoutMs && kReportTimeoutMs < kDefaultGraceMs);

}  // namespace engine::launch
