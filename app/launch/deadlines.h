// Every deadline of the control channel, and what must hold between them. Those of LaunchOptions
// are defaults.
#pragma once

#include <cstdint>

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

// The store server answers at once: this bounds one that is stopped, or a network that is gone.
inline constexpr int64_t kReplyTimeoutMs = 30000;
// To say how a member ended, and for the server to close after that.
inline constexpr int64_t kReportTimeoutMs = 1000;
inline constexpr int64_t kFlushMs = 500;  // of the server, for its last messages

// After a failure. A secondary failure waits for its cause to show.
inline constexpr int64_t kDefaultGraceMs = 1500;  // LaunchOptions
inline constexpr int64_t kSecondaryFailureMs = 1000;
inline constexpr int64_t kExitMs = 300;     // of a process that has closed its connection
inline constexpr int64_t kKilledMs = 5000;  // of a process that was killed
inline constexpr int64_t kHangMs = 10000;   // of a thread, beyond the grace: it cannot be killed
// Launchers send a process group's Ctrl-C a second time themselves; a person is slower.
inline constexpr int64_t kSecondSignalMs = 1000;

// A member hears who is missing before it gives up by itself.
static_assert(kRendezvousGraceMs > kReportTimeoutMs + kPollMs);
// A pending connection is not kept longer than a rendezvous.
static_assert(kHelloTimeoutMs < kRendezvousTimeoutMs);
// The server takes a report in the time that the member gives it.
static_assert(kFlushMs < kReportTimeoutMs && kPollMs < kFlushMs);
// The cause shows, and is told, before the members that failed of it are killed.
static_assert(kSecondaryFailureMs + kPollMs < kDefaultGraceMs);
// How a process ended is known before its members' reports are waited for no more.
static_assert(kExitMs < kReportTimeoutMs && kReportTimeoutMs < kDefaultGraceMs);

}  // namespace engine::launch
