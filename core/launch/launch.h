// Ranks: where they come from, how they find each other, and how the end of one ends all.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/launch/rank_context.h"
#include "engine/status.h"

namespace engine {

// What the command line says of ranks; 0 or empty: nothing.
struct LaunchFlags {
  int world_size = 0;      // -n
  bool threads = false;    // --threads
  std::string rendezvous;  // --rendezvous HOST:PORT, for ranks that others started on several hosts
  // --launcher auto|none|torchrun|openmpi|slurm|pmi; none ignores the environment.
  std::string launcher;
};

struct LaunchPlan {
  enum class Mode {
    kSpawn,    // this process starts world_size processes
    kThreads,  // ranks are threads of this process
    kJoin,     // this process is one rank of a job that another launcher started
  };
  Mode mode = Mode::kSpawn;
  RankInfo info;           // kJoin: who this is; else the world size only
  std::string rendezvous;  // kJoin: "HOST:PORT" or "unix:NAME" of the store that rank 0 serves
  std::string job;         // kJoin: tells this run from others at the same rendezvous; may be empty
  std::string source;      // "torchrun", "Open MPI", "-n", ...: for messages
};

// Flags first, then the environment of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*), Slurm and PMI, else one rank.
// kInvalidArgument when two sources disagree or one is incomplete: both are named.
Result<LaunchPlan> ResolveLaunch(const LaunchFlags& flags,
                                 const std::map<std::string, std::string>& environment);

struct LaunchOptions {
  int64_t rendezvous_timeout_ms = 30000;
  // After the first failure the other ranks get this long to leave by themselves.
  int64_t grace_ms = 1500;
  // kJoin: how long rank 0 serves the ranks that go on after it has finished without an error.
  int64_t leave_timeout_ms = 60000;
};

struct LaunchOutcome {
  Status status;      // ok() if every rank returned OK; rank() is the one to blame
  int exit_code = 0;  // by the table in exit_code.h, or 128 + signal
  // Whether this process is the one to tell the user. In kJoin that is rank 0, or whoever cannot
  // reach it.
  bool report = true;
};

// Runs `body` once per rank and returns when all are gone.
//
// A rank fails when body returns an error or throws, when its process ends without a word, or when
// a signal kills it. Then every other rank's AbortSignal is raised with a secondary error (kAborted
// or kPeerLost) that names the failed rank and its cause, and the returned status is the first
// primary cause (not kAborted or kPeerLost, while another rank has a better one), blamed on its
// rank, its message free of a rank prefix. A rank killed by signal S is kPeerLost with exit_code
// 128+S. SIGINT and SIGTERM set stop_requested in every rank; kInterrupted is then a way to leave
// that disturbs no other rank, and exit_code is 128 + that signal. A second one kills.
//
// Call it before any other thread exists: kSpawn forks, and every mode blocks the two signals in
// the threads it starts (the caller's mask is restored).
//
// kSpawn: a child dies with its parent; ranks that stay grace_ms after the first failure are
// killed. kThreads: ranks that stay grace_ms + 10 s after it make the call return an error that
// names them; they still use `body`, so the caller can only end the process. kJoin: rank 0 leaves
// last, within grace_ms after a failure, else within leave_timeout_ms.
LaunchOutcome Launch(const LaunchPlan& plan, const LaunchOptions& options,
                     const std::function<Status(RankContext&)>& body);

}  // namespace engine
