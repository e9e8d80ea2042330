// Ranks and servers: where they come from, how they find each other, and how the end of one ends
// all.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "app/launch/deadlines.h"
#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::launch {

// What the command line says of ranks, numbers within their ranges; 0 or empty: nothing.
struct LaunchFlags {
  int world_size = 0;      // -n
  bool threads = false;    // --threads
  std::string rendezvous;  // --rendezvous HOST:PORT, for ranks that others started on several hosts
  // --launcher auto|none|torchrun|openmpi|slurm|pmi|kubernetes; none ignores the environment.
  std::string launcher;
  int servers = 0;        // --servers
  std::string serve_at;   // --serve-at HOST:PORT
  std::string key_file;   // --key-file
  bool insecure = false;  // --insecure
  int restarts = 0;       // --restarts
  int min_ranks = 0;      // --min-ranks
};

struct LaunchPlan {
  enum class Mode {
    kSpawn,    // this process starts world_size processes
    kThreads,  // ranks are threads of this process
    kJoin,     // this process is one rank of a job that another launcher started
    kServe,    // this process is a server of a run that is under way elsewhere
  };
  Mode mode = Mode::kSpawn;
  // kJoin: who this is, and the number of servers; kServe: which server; else the numbers of ranks
  // and servers only.
  RankInfo info;
  // kJoin: "HOST:PORT" or "unix:NAME" of the store that rank 0 serves; kServe: where that is.
  std::string rendezvous;
  // The host of `rendezvous` may get its name after this process has started, as pods do.
  bool name_comes_later = false;
  std::string job;       // kJoin: tells this run from others at the same rendezvous; may be empty
  std::string source;    // "torchrun", "Open MPI", "-n", ...: for messages
  std::string serve_at;  // kSpawn: where servers from elsewhere join; empty: they are started here
  // Shared by all members that join over a network; empty: none. kSpawn with serve_at and rank 0 of
  // kJoin make the file if there is none.
  std::string key_file;
  bool insecure = false;  // members may join over a network without a key
  // kJoin: there is nobody to meet.
  bool alone() const { return mode == Mode::kJoin && info.world_size + info.servers == 1; }
  // How often, in the whole run, a lost rank is started again (kSpawn), or another process may join in
  // its place (kJoin, of rank 0).
  int restarts = 0;
  // With how many ranks the run goes on when lost ones are not replaced; 0: only with all.
  int min_ranks = 0;
  // Whether a run whose ranks update survives the loss of one.
  bool survives() const { return restarts + min_ranks > 0; }
};

// Flags first, then the environment of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*), Slurm, PMI and Kubernetes, else one rank.
// kInvalidArgument when two sources disagree or one is incomplete: both are named.
Result<LaunchPlan> ResolveLaunch(const LaunchFlags& flags,
                                 const std::map<std::string, std::string>& environment);

// Server `index` of the run whose store is at `address`. kInvalidArgument.
Result<LaunchPlan> ResolveServe(const std::string& address, int index, const std::string& key_file,
                                bool insecure = false);

// In the body of a member: an address at which other hosts reach its host; empty where all members are on
// one.
Result<std::string> AddressOf(base::RankContext& member);

struct LaunchOptions {
  int64_t rendezvous_timeout_ms = kRendezvousTimeoutMs;
  // After the first failure the other members get this long to leave by themselves.
  int64_t grace_ms = kDefaultGraceMs;
  // A member that gives no sign of life for so long is lost: it is stopped, hangs, or cannot be
  // reached. Members hold the launcher, or rank 0, to the same.
  int64_t liveness_timeout_ms = kLivenessTimeoutMs;
  // How long ranks may go on after the first that has left without an error, or after a request to
  // stop; longer while rank 0 sets kProgressKey to other values.
  int64_t leave_timeout_ms = kLeaveTimeoutMs;
  int64_t stop_timeout_ms = kStopTimeoutMs;
  // How long servers may take to leave after the last rank.
  int64_t server_leave_ms = kServerLeaveMs;
  // Told what happens to a run that goes on: "rank 2: its process (pid 123) was killed by signal 9
  // (Killed); the run goes on without it", "refused a connection from 10.0.0.7:4242: ...". Called
  // in the process that reports the outcome, on any of its threads. May be null.
  std::function<void(const std::string& sentence)> notice = nullptr;
};

struct LaunchOutcome {
  // ok() if every member returned OK, but for ranks whose loss the run survived (AllowLosses);
  // rank() is the one to blame, ServerId(i) for server i
  Status status;
  int exit_code = 0;  // by the table in exit_code.h, or 128 + signal
  // kThreads: threads of members that do not end use `body` still, and maybe locks of the process:
  // the caller can only _exit.
  bool hangs = false;
};

// Runs `body` once per member, a rank or a server (RankInfo::is_server), and returns when all are
// gone.
//
// A member fails when body returns an error or throws, when its process ends without a word, or
// when a signal kills it. Then the AbortSignal of every other member is raised with a secondary
// error (kAborted or kPeerLost) that names the failed one and its cause, and the returned status is
// the first primary cause (not kAborted or kPeerLost, while another member has a better one),
// blamed on its member, its message free of a rank prefix. One that is killed by signal S is
// kPeerLost with exit_code 128+S. SIGINT, SIGTERM, SIGHUP and SIGUSR1 set stop_requested in every rank;
// kInterrupted is then a way to leave that disturbs no other rank, and exit_code is 128 + that
// signal. A second one kills, unless it comes within a second of the first.
//
// After RankContext::AllowLosses the failure of a rank other than rank 0 ends that rank only. In
// kSpawn it is started again while LaunchPlan::restarts lasts, with RankInfo::incarnation one
// higher.
//
// Once kRegroupKey is set, the failure or loss of any rank that is not the fault of its own work makes
// the others begin again (RankContext::regroup), with another in its place or, down to
// LaunchPlan::min_ranks, without it. In kJoin rank 0, which serves the store, cannot be lost.
//
// Servers leave when all ranks have left. Those that have not done so server_leave_ms later fail
// with kTimeout.
//
// Members that meet where other hosts may come too have a key, or LaunchPlan::insecure: else the
// call is refused, with exit code 79.
//
// Call it before any other thread exists: kSpawn forks, and every mode blocks these signals in
// the threads it starts (the caller's mask is restored).
//
// kSpawn: a child dies with its parent; members that stay grace_ms after the first failure are
// killed. kThreads: members that stay grace_ms + 10 s after it make the call return an error that
// names them (LaunchOutcome::hangs). kJoin: rank 0 leaves
// last, within grace_ms after a failure. kServe: the run is somewhere else. In these two modes the
// outcome is that of this member: of one that ends because of another, why it does. Its process is
// ended with _exit, after a notice, when its work hangs beyond the grace.
LaunchOutcome Launch(const LaunchPlan& plan, const LaunchOptions& options,
                     const std::function<Status(base::RankContext&)>& body);

}  // namespace engine::launch
