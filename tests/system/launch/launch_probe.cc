// launch_probe SCENARIO [RANK] [-n N] [--threads] [--rendezvous-ms MS] [--servers N]
//              [--serve-at HOST:PORT] [--key-file FILE] [--restarts K] [--deaths D]
//              [--liveness-ms MS] [--leave-ms MS] [--stop-ms MS]
// launch_probe SCENARIO --serve HOST:PORT --index I [--key-file FILE] [--rendezvous-ms MS]
//
// Runs one scenario on every member, as the command line would run training, and exits with the
// outcome's code. Each rank prints "pid P" when it starts and "stop S" when it is asked to stop; a
// server prints "server I pid P" and, when the ranks have left, "served S" with the signal by which
// it was asked to stop. What the launcher tells of a run that goes on is printed as "notice: ...".

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "app/launch/agree.h"
#include "app/launch/launch.h"
#include "app/launch/member.h"

extern char** environ;

namespace engine {
namespace {

constexpr int64_t kForeverMs = 60000;

struct Scenario {
  std::string name;
  int rank = 0;    // the one that does something else
  int deaths = 0;  // "lossy": how often it dies
  int restarts = 0;
};

void Say(const std::string& line) {
  std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
}

Status Await(base::RankContext& context, const std::string& key) {
  return context.store.Get(key, kForeverMs).status();
}

// Every rank reads what its neighbour wrote.
Status Ring(base::RankContext& context) {
  int next = (context.info.rank + 1) % context.info.world_size;
  std::string value(100000, static_cast<char>('a' + context.info.rank));
  ENGINE_RETURN_IF_ERROR(context.store.Set("ring/" + std::to_string(context.info.rank), value));
  ENGINE_ASSIGN_OR_RETURN(std::string got,
                          context.store.Get("ring/" + std::to_string(next), kForeverMs));
  if (got == std::string(100000, static_cast<char>('a' + next))) return {};
  return Status::Error(StatusCode::kInternal, "wrong bytes from rank %d", next);
}

Status WaitForStop(base::RankContext& context) {
  while (context.stop_requested == 0 && !context.abort.raised()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (context.abort.raised()) return context.abort.reason();
  Say("stop " + std::to_string(context.stop_requested.load()));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the rest of the step
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

// Waits until the process that `key` names has ended.
Status AwaitEnd(base::RankContext& context, const std::string& key) {
  ENGINE_ASSIGN_OR_RETURN(const std::string pid, context.store.Get(key, kForeverMs));
  while (kill(std::stoi(pid), 0) == 0) {
    if (context.abort.raised()) return context.abort.reason();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {};
}

// One rank dies `deaths` times, and rank 0 has said that the run survives that.
Status Lossy(base::RankContext& context, const Scenario& scenario) {
  context.info.rendezvous_timeout_ms = kForeverMs;
  ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(context, "probe", "the same"));
  const int rank = context.info.rank, incarnation = context.info.incarnation;
  if (rank == 0) {
    context.AllowLosses();
    ENGINE_RETURN_IF_ERROR(context.store.Set("allowed", ""));
  }
  ENGINE_RETURN_IF_ERROR(Await(context, "allowed"));
  if (rank == scenario.rank) {
    if (incarnation < scenario.deaths) {
      (void)context.store.Set("victim/" + std::to_string(incarnation), std::to_string(getpid()));
      raise(SIGKILL);
    }
    Say("incarnation " + std::to_string(incarnation));
    return context.store.Set("alive", "");
  }
  if (rank != 0) return Await(context, "finish");
  for (int death = 0; death < scenario.deaths && death <= scenario.restarts; ++death) {
    ENGINE_RETURN_IF_ERROR(AwaitEnd(context, "victim/" + std::to_string(death)));
  }
  if (scenario.deaths <= scenario.restarts) ENGINE_RETURN_IF_ERROR(Await(context, "alive"));
  return context.store.Set("finish", "");
}

Status Serve(base::RankContext& context, const Scenario& scenario) {
  const RankInfo& info = context.info;
  Say("server " + std::to_string(info.rank) + " pid " + std::to_string(getpid()));
  Say("run of " + std::to_string(info.world_size) + " ranks, " + std::to_string(info.servers) +
      " servers, one host " + std::to_string(info.one_host));
  ENGINE_RETURN_IF_ERROR(context.store.Set("serving/" + std::to_string(info.rank), ""));
  if (scenario.name == "server-kill" && info.rank == scenario.rank) {
    ENGINE_RETURN_IF_ERROR(Await(context, "waiting/0"));
    raise(SIGKILL);
  }
  if (scenario.name == "server-stay") {
    for (;;) pause();
  }
  ENGINE_RETURN_IF_ERROR(Await(context, launch::kRanksLeftKey));
  Say("served " + std::to_string(context.stop_requested.load()));
  return {};
}

Status Body(base::RankContext& context, const Scenario& scenario) {
  if (context.info.is_server != 0) return Serve(context, scenario);
  Say("pid " + std::to_string(getpid()));
  if (scenario.name == "ring") return Ring(context);
  if (scenario.name == "lossy") return Lossy(context, scenario);
  if (scenario.name == "server-stay") return {};
  if (scenario.name == "server-kill") {
    ENGINE_RETURN_IF_ERROR(context.store.Set("waiting/" + std::to_string(context.info.rank), ""));
    return Await(context, "never");
  }
  if (scenario.name == "wait") return WaitForStop(context);
  if (scenario.name == "stay") {  // one hangs when the others have left well
    while (context.info.rank == scenario.rank) pause();
    return {};
  }
  if (scenario.name == "deaf") {
    for (;;) pause();
  }
  ENGINE_RETURN_IF_ERROR(Ring(context));
  if (context.info.rank == scenario.rank) {
    // Not before all others are where they shall be hit.
    for (int other = 0; other < context.info.world_size; ++other) {
      if (other != scenario.rank) {
        ENGINE_RETURN_IF_ERROR(Await(context, "waiting/" + std::to_string(other)));
      }
    }
    return Misbehave(scenario.name);
  }
  Status status = context.store.Set("waiting/" + std::to_string(context.info.rank), "");
  if (scenario.name == "stuck") {
    for (;;) pause();
  }
  if (status.ok()) status = Await(context, "never");
  if (scenario.name == "tidy") {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Say("tidied");
  }
  return status;
}

int Main(int argc, char** argv) {
  Scenario scenario;
  launch::LaunchFlags flags;
  launch::LaunchOptions options;
  options.server_leave_ms = 300;
  options.grace_ms = 700;
  options.notice = [](const std::string& sentence) { Say("notice: " + sentence); };
  std::string serve;
  int index = 0;
  CLI::App app;
  app.add_option("scenario", scenario.name)->required();
  app.add_option("rank", scenario.rank);
  app.add_option("-n", flags.world_size);
  app.add_flag("--threads", flags.threads);
  app.add_flag_callback("--default-grace",
                        [&options] { options.grace_ms = launch::LaunchOptions().grace_ms; });
  app.add_option("--rendezvous-ms", options.rendezvous_timeout_ms);
  app.add_option("--liveness-ms", options.liveness_timeout_ms);
  app.add_option("--leave-ms", options.leave_timeout_ms);
  app.add_option("--stop-ms", options.stop_timeout_ms);
  app.add_option("--servers", flags.servers);
  app.add_option("--serve-at", flags.serve_at);
  app.add_option("--key-file", flags.key_file);
  app.add_flag("--insecure", flags.insecure);
  app.add_option("--restarts", flags.restarts);
  app.add_option("--deaths", scenario.deaths);
  app.add_option("--serve", serve);
  app.add_option("--index", index);
  CLI11_PARSE(app, argc, argv);
  scenario.restarts = flags.restarts;
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const size_t equals = variable.find('=');
    environment[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  launch::LaunchOutcome outcome{{}, 2};
  Result<launch::LaunchPlan> plan =
      serve.empty() ? launch::ResolveLaunch(flags, environment)
                    : launch::ResolveServe(serve, index, flags.key_file, flags.insecure);
  if (plan.ok()) {
    outcome = launch::Launch(*plan, options,
                             [&](base::RankContext& context) { return Body(context, scenario); });
  } else {
    outcome.status = plan.status();
  }
  if (!outcome.status.ok()) {
    Say("error: " + base::MemberName(outcome.status.rank()) + ": " + outcome.status.message());
  }
  return outcome.exit_code;
}

}  // namespace
}  // namespace engine

int main(int argc, char** argv) {
  return engine::Main(argc, argv);
}
