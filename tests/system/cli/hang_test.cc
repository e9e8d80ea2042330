// No plugin that does not return holds a run: whichever call it is, the run ends in its time with one
// sentence that names plugin, call and rank, and leaves nothing behind.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

// Where the plugin of this kind hangs, on the last of so many ranks, and what is said of it.
struct Case {
  const char *kind, *call, *sentence;
  int ranks = 1;  // 0: one, which no launcher watches
  bool threads = false;
};

class Hang : public CliTest {
 protected:
  // All at once, since they only wait. Limits follow that of a transfer.
  void ExpectNamed(const std::vector<Case>& cases) {
    folder_.Write("run.pbtxt",
                  "train { steps: 4 global_batch: 8 }\n"
                  "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n");
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<EngineProcess>> runs;
    for (const Case& one : cases) runs.push_back(Start(WordsOf(one)));
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(std::string(cases[i].kind) + " " + cases[i].call);
      const Outcome outcome = runs[i]->Wait();
      EXPECT_EQ(outcome.exit_code, 202);
      EXPECT_THAT(outcome.err,
                  ::testing::MatchesRegex("engine: " + Who(cases[i]) + "[^\n]*'?faulty_" +
                                          cases[i].kind + cases[i].sentence + ".*\n"));
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  }

 private:
  static int Rank(const Case& one) { return std::max(one.ranks, 1) - 1; }
  // One rank alone is not named.
  static std::string Who(const Case& one) {
    return one.ranks < 2 ? "" : "rank " + std::to_string(Rank(one)) + ": ";
  }
  static std::string ModeOf(const Case& one) {
    const std::string mode = std::string(one.call) + ".hang,*no_op=1";
    return one.call == std::string("Abort") ? mode + ",Submit.data" : mode;
  }
  static std::string WordsOf(const Case& one) {
    const std::string kind = one.kind, name = "faulty_" + kind;
    const bool is_data = kind == "dataset", is_model = kind == "model", is_ops = kind == "ops";
    const std::string block = (is_data ? "data." : is_model ? "model." : "") + name;
    std::vector<std::string> values = {
        block + ".mode=" + ModeOf(one), block + ".rank=" + std::to_string(Rank(one)),
        "communication.timeout_ms=" + std::to_string(one.ranks > 2 ? 1000 : 100)};
    if (!is_data)
      values.insert(values.end(), {"data.synthetic.shape=8", "data.synthetic.classes=4"});
    if (!is_model) values.push_back("model.mlp.hidden=8");
    if (is_ops) values.push_back("model.mlp.activation=faulty");
    std::string words = "run run.pbtxt -q --plugin-path " ENGINE_TEST_FAULTY;
    if (one.ranks > 0) words += " -n " + std::to_string(one.ranks);
    if (one.threads) words += " --threads";
    if (block == name) words += " --plugins " + (is_ops ? "cpu_ops," + name : name);
    for (const std::string& value : values) words += " --set " + value;
    return words;
  }
};

constexpr const char *kCreate = "' has not returned from its create function",
                     *kEnd = "' has not returned from its destructor",
                     *kNext = "' has not returned from On or Next",
                     *kForward = "' has not returned from forward of 'faulty1' \\(faulty\\)";

TEST_F(Hang, OneOfEachSort) {
  ExpectNamed({{"ops", "Infer", "' has not returned from Infer of 'faulty'"},
               {"ops", "Backward", "' has not returned from backward of 'faulty1' \\(faulty\\)"},
               {"scheduler", "Plan", "' has not returned from Plan"},
               {"optimizer", "create", kCreate},
               {"hook", "Apply", "' has not returned from 'faulty_hook"},
               {"hook", "destructor", kEnd},
               {"dataset", "Open", "' has not returned from Open"},
               {"dataset", "Ahead", "' has not returned from Fill"},
               {"model", "Build", "' has not returned from Build"},
               {"scheduler", "Next", kNext, 0},
               {"dataset", "destructor", kEnd, 0},
               {"ops", "Forward", kForward, 3},
               {"scheduler", "Next", kNext, 3}});
}

using Slow = Hang;

TEST_F(Slow, AllOthers) {
  ExpectNamed({{"ops", "create", kCreate},
               {"ops", "CreateOp", "' has not returned from CreateOp of 'faulty'"},
               {"ops", "Forward", kForward},
               {"ops", "Evaluation", kForward},
               {"ops", "destructor", kEnd},
               {"communicator", "create", kCreate},
               {"communicator", "destructor", kEnd},
               {"communicator", "Submit", "' has not returned from Submit", 2},
               {"communicator", "WaitHost", "' has not returned from Submit or WaitHost", 2},
               {"communicator", "Abort", "' has not returned from Abort after: ", 2},
               {"scheduler", "create", kCreate},
               {"scheduler", "Begin", "' has not returned from Begin"},
               {"scheduler", "On", kNext},
               {"scheduler", "Next", kNext},
               {"scheduler", "destructor", kEnd},
               {"optimizer", "Update", "' has not returned from 'update "},
               {"optimizer", "destructor", kEnd},
               {"optimizer", "Update", "' has not returned from 'update ", 3},
               {"hook", "create", kCreate},
               {"hook", "Setup", "' has not returned from Setup"},
               {"hook", "BeginStep", "' has not returned from BeginStep"},
               {"hook", "Apply", "' .* the threads of these hang: rank 2", 3, /*threads=*/true},
               {"dataset", "create", kCreate},
               {"dataset", "Fill", ".* Fill "},
               {"dataset", "Fill", ".* Fill ", 3},
               {"dataset", "destructor", kEnd},
               {"model", "create", kCreate},
               {"model", "destructor", kEnd}});
}

}  // namespace
}  // namespace engine::test
