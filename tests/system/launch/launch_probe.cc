// launch_probe SCENARIO [RANK] [-n N] [--threads] [--rendezvous-ms MS]
//
// Runs one scenario on every rank, as the command line would run training, and exits with the
// outcome's code. Each rank prints "pid P" when it starts and "stop S" when it is asked to stop.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/launch/launch.h"

extern char** environ;

namespace engine {
namespace {

constexpr int64_t kForeverMs = 60000;

struct Scenario {
  std::string name;
  int rank = 0;  // the one that does something else
};

void Say(const std::string& line) {
  std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
}

// Every rank reads what its neighbour wrote.
Status Ring(RankContext& context) {
  int next = (context.info.rank + 1) % context.info.world_size;
  std::string value(100000, static_cast<char>('a' + context.info.rank));
  ENGINE_RETURN_IF_ERROR(context.store.Set("ring/" + std::to_string(context.info.rank), value));
  ENGINE_ASSIGN_OR_RETURN(std::string got,
                          context.store.Get("ring/" + std::to_string(next), kForeverMs));
  if (got == std::string(100000, static_cast<char>('a' + next))) return {};
  return Status::Error(StatusCode::kInternal, "wrong bytes from rank %d", next);
}

Status WaitForStop(RankContext& context) {
  while (context.stop_requested == 0 && !context.abort.raised()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (context.abort.raised()) return context.abort.reason();
  Say("stop " + std::to_string(context.stop_requested.load()));
  return Status::Error(StatusCode::kInterrupted, "stopped after step 7");
}

// What the one rank does while the others wait for a key that nobody sets.
Status Misbehave(const std::string& name) {
  if (name == "fail") return Status::Error(StatusCode::kBadData, "a planned failure");
  if (name == "throw") throw std::runtime_error("a planned exception");
  if (name == "exit") _exit(3);
  if (name == "kill") raise(SIGKILL);
  if (name == "abort") std::abort();
  // "stuck": the others do not listen. "tidy": they take a while to leave.
  return Status::Error(StatusCode::kStorage, "the first failure");
}

Status Body(RankContext& context, const Scenario& scenario) {
  Say("pid " + std::to_string(getpid()));
  if (scenario.name == "ring") return Ring(context);
  if (scenario.name == "wait") return WaitForStop(context);
  if (scenario.name == "deaf") {
    for (;;) pause();
  }
  ENGINE_RETURN_IF_ERROR(Ring(context));
  const std::string mine = std::to_string(context.info.rank);
  if (context.info.rank == scenario.rank) {
    // Not before all others are where they shall be hit.
    for (int other = 0; other < context.info.world_size; ++other) {
      if (other == scenario.rank) continue;
      ENGINE_RETURN_IF_ERROR(
          context.store.Get("waiting/" + std::to_string(other), kForeverMs).status());
    }
    return Misbehave(scenario.name);
  }
  Status status = context.store.Set("waiting/" + mine, "");
  if (scenario.name == "stuck") {
    for (;;) pause();
  }
  if (status.ok()) status = context.store.Get("never", kForeverMs).status();
  if (scenario.name == "tidy") {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Say("tidied");
  }
  return status;
}

int Main(int argc, char** argv) {
  Scenario scenario;
  LaunchFlags flags;
  LaunchOptions options;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "-n") {
      flags.world_size = std::atoi(value), ++i;
    } else if (arg == "--threads") {
      flags.threads = true;
    } else if (arg == "--rendezvous-ms") {
      options.rendezvous_timeout_ms = std::atoi(value), ++i;
    } else if (scenario.name.empty()) {
      scenario.name = arg;
    } else {
      scenario.rank = std::atoi(arg.c_str());
    }
  }
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (const char* equals = std::strchr(*entry, '=')) {
      environment[std::string(*entry, equals - *entry)] = equals + 1;
    }
  }
  LaunchOutcome outcome{{}, 2};
  Result<LaunchPlan> plan = ResolveLaunch(flags, environment);
  if (plan.ok()) {
    outcome = Launch(*plan, options, [&](RankContext& context) { return Body(context, scenario); });
  } else {
    outcome.status = plan.status();
  }
  if (!outcome.status.ok() && outcome.report) {
    Say("error: rank " + std::to_string(outcome.status.rank()) + ": " + outcome.status.message());
  }
  return outcome.exit_code;
}

}  // namespace
}  // namespace engine

int main(int argc, char** argv) {
  return engine::Main(argc, argv);
}
