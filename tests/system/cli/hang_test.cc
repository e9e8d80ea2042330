// No plugin that does not return holds a run: whichever call it is, the run ends in its time with one
// sentence that names plugin, call and rank, and leaves nothing behind.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

// `who` has not returned from `function` where a plugin of this kind hangs in `call`.
struct Case {
  const char *kind, *call, *who, *function;
};

// The last of so many ranks hangs; 0: one, which no launcher watches.
struct Ranks {
  int count;
  int timeout_ms;  // of a transfer: other limits follow
};

class Hang : public CliTest {
 protected:
  // Of the plugin that hangs, with real ones in the other roles.
  std::string Config(const Case& one, const Ranks& ranks) {
    const std::string kind = one.kind;
    const std::string block = "hanging_" + kind + " { call: \"" + one.call +
                              "\" rank: " + std::to_string(std::max(ranks.count, 1) - 1) + " }";
    const auto or_real = [&](const char* role, const std::string& real) {
      return kind == role ? "\"hanging_" + kind + "\"" : real;
    };
    const std::string mlp = std::string("mlp { hidden: [8] activation: \"") +
                            (kind == "ops" ? "hanging" : "relu") + "\" }";
    const bool chosen_by_name = kind != "dataset" && kind != "model";
    return "seed: 3\ntrain { steps: 4 global_batch: 8 }\nmodel { " +
           (kind == "model" ? block : mlp) + " }\ndata { " +
           (kind == "dataset" ? block
                              : "synthetic { samples: 64 eval_samples: 16 shape: 8 classes: 4 }") +
           " }\nplugins: [\"cpu_ops\", " + or_real("communicator", "\"tcp\"") + ", " +
           or_real("scheduler", "\"fifo_sched\"") + ", " + or_real("optimizer", "\"sgd\"") +
           (kind == "ops" || kind == "hook" ? ", \"hanging_" + kind + "\"" : "") + "]\n" +
           (chosen_by_name ? block : "") +
           "\ncommunication { timeout_ms: " + std::to_string(ranks.timeout_ms) + " }\n";
  }

  // All at once, since they only wait.
  void ExpectNamed(const std::vector<Case>& cases, const Ranks& ranks) {
    const auto begin = steady_clock::now();
    std::vector<std::unique_ptr<EngineProcess>> runs;
    for (const Case& one : cases) {
      const std::string file = std::to_string(runs.size()) + ".pbtxt";
      folder_.Write(file, Config(one, ranks));
      const std::string count = ranks.count > 0 ? " -n " + std::to_string(ranks.count) : "";
      runs.push_back(Start("run " + file + " -q --plugin-path " ENGINE_TEST_HANGING + count));
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      SCOPED_TRACE(std::string(one.kind) + " " + one.call);
      EXPECT_THAT(
          Refusal(runs[i]->Wait(), 202),
          HasSubstr("engine: rank " + std::to_string(std::max(ranks.count, 1) - 1) + ": " +
                    one.who + " 'hanging_" + one.kind + "' has not returned from " + one.function));
    }
    EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
  }
};

TEST_F(Hang, InACallOfTheSetup) {
  ExpectNamed({{"ops", "create", "plugin", "its create function"},
               {"ops", "CreateOp", "plugin", "CreateOp of 'hanging'"},
               {"ops", "Infer", "plugin", "Infer of 'hanging'"},
               {"communicator", "create", "plugin", "its create function"},
               {"scheduler", "create", "plugin", "its create function"},
               {"scheduler", "Plan", "scheduler", "Plan"},
               {"scheduler", "Begin", "scheduler", "Begin"},
               {"optimizer", "create", "plugin", "its create function"},
               {"hook", "create", "plugin", "its create function"},
               {"hook", "Setup", "hook", "Setup"},
               {"dataset", "create", "plugin", "its create function"},
               {"dataset", "Open", "plugin", "Open"},
               {"model", "create", "plugin", "its create function"},
               {"model", "Build", "plugin", "Build"},
               {"model", "destructor", "plugin", "its destructor"}},
              {.count = 1, .timeout_ms = 100});
}

TEST_F(Hang, InACallOfAStep) {
  ExpectNamed({{"ops", "Forward", "plugin", "forward of 'hanging1' (hanging)"},
               {"ops", "Backward", "plugin", "backward of 'hanging1' (hanging)"},
               {"ops", "evaluation", "plugin", "forward of 'hanging1' (hanging)"},
               {"scheduler", "On", "scheduler", "On or Next"},
               {"scheduler", "Next", "scheduler", "On or Next"},
               {"optimizer", "Update", "optimizer", "'update "},
               {"hook", "BeginStep", "hook", "BeginStep"},
               {"hook", "Apply", "hook", "'"}},
              {.count = 1, .timeout_ms = 100});
}

TEST_F(Hang, InACallOfTheEnd) {
  ExpectNamed({{"ops", "destructor", "plugin", "its destructor"},
               {"communicator", "destructor", "plugin", "its destructor"},
               {"scheduler", "destructor", "plugin", "its destructor"},
               {"optimizer", "destructor", "plugin", "its destructor"},
               {"hook", "destructor", "plugin", "its destructor"},
               {"dataset", "destructor", "plugin", "its destructor"},
               {"dataset", "Fill ahead", "plugin", "Fill"}},
              {.count = 1, .timeout_ms = 100});
}

TEST_F(Hang, InATransfer) {
  ExpectNamed({{"communicator", "Submit", "communicator", "Submit"},
               {"communicator", "WaitHost", "communicator", "Submit or WaitHost"},
               {"communicator", "Abort", "communicator", "Abort after: "}},
              {.count = 2, .timeout_ms = 200});
}

TEST_F(Hang, WhereNoLauncherWatches) {
  ExpectNamed({{"scheduler", "Next", "scheduler", "On or Next"},
               {"dataset", "Open", "plugin", "Open"},
               {"hook", "destructor", "plugin", "its destructor"}},
              {.count = 0, .timeout_ms = 100});
}

// They give up first, and say that they have waited for it.
TEST_F(Hang, IsWhyOthersWaitInVain) {
  ExpectNamed({{"ops", "Forward", "plugin", "forward of 'hanging1' (hanging)"},
               {"dataset", "Fill", "plugin", "Fill"},
               {"optimizer", "Update", "optimizer", "'update "},
               {"scheduler", "Next", "scheduler", "On or Next"}},
              {.count = 3, .timeout_ms = 1000});
}

}  // namespace
}  // namespace engine::testing
