// The order of backward work with the real schedulers, on the graph on which the question was first
// asked: ab = a + b, cd = c + d, final = ab + cd.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/conformance/plugin_under_test.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 3, kSamples = 2;
using Names = std::vector<std::string>;

// The graph with a parameter in each of a, b, c, d, under the scheduler of a plugin, which sends
// every gradient on its own.
struct Leaves {
  SingleHost host;
  Rig rig;

  Status Make(const std::string& scheduler) {
    ENGINE_ASSIGN_OR_RETURN(const PluginUnderTest plugin,
                            PluginUnderTest::Load(PluginPaths({scheduler})[0]));
    ENGINE_ASSIGN_OR_RETURN(auto made, plugin.Create<Scheduler>(host, {{"fuse_bytes", "0"}}));
    return rig.Make(FourLeaves(kWidth, kSamples), std::move(made),
                    std::make_unique<FakeCommunicator>());
  }

  // What the compute lane did from the end of the forward pass. Every gradient may travel as soon as
  // its op has ended, before the next one begins.
  Names BackwardOrder(uint64_t step) {
    const std::vector<float> input(kWidth * kSamples, 1);
    const std::vector<int32_t> target(kWidth * kSamples, 1);
    const auto result = rig.Step({.input = input.data(),
                                  .target = target.data(),
                                  .samples = kSamples,
                                  .step = step,
                                  .learning_rate = 1});
    EXPECT_TRUE(result.ok()) << result.status().message();
    Names names;
    std::map<std::string, int64_t> complete, ends;
    for (const trace::Span& record : TaskSpans(*rig.executor, step)) {
      const exec::Task& task = rig.executor->tasks().tasks[record.task];
      if (task.data == exec::TransferData::kGradients && task.info.kind == TaskKind::kTransfer) {
        complete[task.name] = record.ready_ns;
      }
      if (task.info.kind != TaskKind::kBackward) continue;
      names.push_back(task.name);
      ends[task.name] = record.end_ns;
    }
    for (const std::string leaf : {"a", "b", "c", "d"}) {
      EXPECT_EQ(complete.at("transfer " + leaf + ".weight"), ends.at("backward " + leaf));
    }
    return names;
  }
};

TEST(BackwardOrder, IsThatOfTheGraphOnEveryPassWithPriorities) {
  Leaves run;
  const Status made = run.Make("priority_sched");
  ASSERT_TRUE(made.ok()) << made.message();
  const Names expected = {"backward loss", "backward final", "backward cd", "backward ab",
                          "backward d",    "backward c",     "backward b",  "backward a"};
  for (uint64_t pass = 1; pass <= 3; ++pass) {
    EXPECT_EQ(run.BackwardOrder(pass), expected) << "pass " << pass;
  }
}

TEST(BackwardOrder, FifoFollowsArrivalOnEveryPass) {
  Leaves run;
  const Status made = run.Make("fifo_sched");
  ASSERT_TRUE(made.ok()) << made.message();
  const Names first = run.BackwardOrder(1);
  ASSERT_EQ(first.size(), 8u);
  EXPECT_EQ(Names(first.begin(), first.begin() + 2), (Names{"backward loss", "backward final"}));
  for (uint64_t pass = 2; pass <= 3; ++pass) {
    EXPECT_EQ(run.BackwardOrder(pass), first) << "pass " << pass;
  }
}

}  // namespace
}  // namespace engine::test
