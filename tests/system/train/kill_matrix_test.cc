// Members that are killed, stopped (SIGSTOP) or asked to stop, in every phase of a run, with every
// communicator and launcher: the exit code, who is named, how long it takes, and what is left.

#include <chrono>
#include <sstream>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::Contains;

constexpr int kRanks = 3;
constexpr auto kLimit = std::chrono::seconds(3);   // configured: of a transfer, and of a rendezvous
constexpr auto kNotice = std::chrono::seconds(2);  // to see a death, or that a limit has passed
constexpr std::chrono::seconds kGiveUp{15};        // to go on with the next case
constexpr auto kLoad = std::chrono::seconds(3);    // of a busy machine

struct Case {
  std::string launcher, role, phase, communicator, signal;
  bool spawned() const { return launcher == "spawned"; }
  int number() const { return signal == "KILL" ? SIGKILL : signal == "STOP" ? SIGSTOP : SIGTERM; }
  // Before it has joined, other launchers' ranks only miss it.
  bool missed() const { return !spawned() && phase == "start"; }
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.role; }
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const std::string launcher : {"spawned", "torchrun"}) {
    for (const std::string role : {"rank 0", "rank 1", "server 0", "launcher"}) {
      if (launcher == "torchrun" && role[0] != 'r') continue;
      for (const std::string phase : {"start", "step", "evaluation", "checkpoint", "teardown"}) {
        for (const std::string communicator : {"shm", "tcp", ENGINE_TEST_COMMUNICATORS}) {
          if (role == "server 0" && communicator != "zmq_ps") continue;
          for (const std::string signal : {"KILL", "STOP", "TERM"}) {
            cases.push_back({launcher, role, phase, communicator, signal});
          }
        }
      }
    }
  }
  return cases;
}

// One in eleven of those that do not wait for a limit, and two that do.
std::vector<Case> FastCases() {
  std::vector<Case> cases;
  size_t stops = 0, others = 0;
  for (const Case& one : AllCases()) {
    const bool stop = one.signal == "STOP";
    if (stop ? stops++ % 45 == 24 : others++ % 11 == 0) cases.push_back(one);
  }
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& one = info.param;
  std::string name = one.launcher + "_" + one.role + "_" + one.phase + "_" + one.communicator;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name + "_" + one.signal;
}

class KillMatrix : public CliTest, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    const std::string& phase = GetParam().phase;
    const std::string wide = phase == "checkpoint" ? "3000" : "16";
    const std::string evaluated = phase == "evaluation" ? "60000" : "16";
    folder_.Write("run.pbtxt",
                  "seed: 3 model { mlp { hidden: [16, " + wide + "] } }\n" +
                      "data { synthetic { samples: 64 eval_samples: " + evaluated +
                      " shape: 8 classes: 4 } }\ntrain { global_batch: 12 steps: " +
                      (phase == "teardown" ? "30" : "100000000") +
                      " evaluate_every: " + (phase == "evaluation" ? "1" : "-1") +
                      " checkpoint_every: " + (phase == "checkpoint" ? "1" : "0") + " }\n" +
                      "communication { timeout_ms: 3000 rendezvous_timeout_ms: 3000 }\n" +
                      "plugins: [\"" + GetParam().communicator +
                      "\", \"fifo_sched\", \"sgd\", \"cpu_ops\"] cpu_ops { threads: 1 }\n" +
                      "output { checkpoint: \"model.st\" metrics: \"run.jsonl\" }\n");
  }

  // The processes of the run that this test starts itself.
  void StartRun() {
    if (GetParam().spawned()) {
      const bool server = GetParam().role == "server 0";
      processes_.push_back(
          Start("run run.pbtxt -q -n 3" + std::string(server ? " --servers 1" : "")));
      const size_t members = kRanks + (server ? 1 : 0);
      Await("its members",
            [&] { return (members_ = processes_[0]->Children()).size() >= members; });
      return;
    }
    const int port = FreePort();
    for (int r = 0; r < kRanks; ++r) {
      processes_.push_back(Start("run run.pbtxt -q", TorchrunRank(r, kRanks, port)));
    }
  }

  void AwaitPhase() {
    const std::string& phase = GetParam().phase;
    if (phase == "step") AwaitSteps(5);
    if (phase == "evaluation") AwaitSteps(1);
    if (phase == "checkpoint") {
      AwaitSteps(1);  // before that there is the file by which the folder is tried
      Await("a checkpoint", [&] { return !Temporary().empty(); });
    }
    if (phase == "teardown") {
      Await("the end",
            [&] { return Read("run.jsonl").find("\"checkpoint\"") != std::string::npos; });
    }
  }
  std::string Temporary() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      if (name.find(".tmp.") != std::string::npos) return name;
    }
    return "";
  }

  int Victim() const {
    const std::string& role = GetParam().role;
    if (!GetParam().spawned()) return processes_[role == "rank 1"]->pid();
    if (role == "launcher") return processes_[0]->pid();
    const size_t index = role == "rank 0" ? 0 : role == "rank 1" ? 1 : kRanks;
    return index < members_.size() ? members_[index] : 0;
  }

  // A stopped launcher collects nobody: its ranks have ended when they are zombies.
  void AwaitRanksOfAStoppedLauncher() {
    Await(
        "the end of the ranks",
        [&] {
          for (const int child : members_) {
            const std::string stat = ReadWhole("/proc/" + std::to_string(child) + "/stat");
            if (!stat.empty() && stat.find(") Z ") == std::string::npos) return false;
          }
          return true;
        },
        kGiveUp);
  }

  void CheckEnd(const Outcome& outcome) const {
    const Case& one = GetParam();
    const bool over = one.phase == "teardown" && outcome.exit_code == 0;  // it had ended before
    if (over) return;
    if (one.signal == "TERM") {
      const std::vector<int> codes = one.missed() ? std::vector{143, 200, 201} : std::vector{143};
      EXPECT_THAT(codes, Contains(outcome.exit_code)) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(one.spawned() ? "stopped" : ""));
    } else if (one.role == "launcher") {
      EXPECT_NE(outcome.exit_code, 0) << outcome.err;
    } else {
      const bool signalled = one.signal == "KILL" && one.spawned();
      const std::vector<int> codes = signalled ? std::vector{137} : std::vector{200, 201, 202};
      EXPECT_THAT(codes, Contains(outcome.exit_code)) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(one.role));
      std::istringstream lines(outcome.err);
      for (std::string line; std::getline(lines, line);) {
        const bool tells = line.starts_with("engine: ") && !one.missed();
        EXPECT_THAT(line, HasSubstr(tells ? one.role : "")) << "somebody else is blamed";
      }
    }
  }

  // A writer that is killed leaves its temporary file to the next one.
  void CheckFiles() const {
    const Case& one = GetParam();
    const bool writes = one.role == "rank 0" || one.role == "launcher";
    if (writes && one.signal != "TERM") return;
    EXPECT_EQ(Temporary(), "");
  }

  std::vector<std::unique_ptr<EngineProcess>> processes_;
  std::vector<int> members_;  // of a spawned run, in the order of their numbers
};

TEST_P(KillMatrix, EndsInTimeWithTheRightNameAndLeavesNothing) {
  const Case& one = GetParam();
  StartRun();
  AwaitPhase();
  const int victim = Victim();
  const Clock::time_point begin = Clock::now();
  if (victim > 0) kill(victim, one.number());
  const bool stopped = one.signal == "STOP";
  if (stopped && one.role == "launcher") {
    AwaitRanksOfAStoppedLauncher();
    kill(victim, SIGCONT);
  }
  for (const auto& process : processes_) {
    if (process->pid() == victim && !one.spawned() && one.signal != "TERM") continue;
    CheckEnd(process->Wait(kGiveUp));
  }
  EXPECT_LT(Clock::now() - begin,
            kNotice + kLoad + (stopped || one.missed() ? kLimit : std::chrono::seconds(0)));
  processes_.clear();  // kills who is still stopped
  CheckFiles();
}

INSTANTIATE_TEST_SUITE_P(Fast, KillMatrix, ::testing::ValuesIn(FastCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, KillMatrix, ::testing::ValuesIn(AllCases()), NameOf);

}  // namespace
}  // namespace engine::test
