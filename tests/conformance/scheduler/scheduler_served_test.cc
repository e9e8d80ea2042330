// Buckets that are pushed to servers and pulled from them: what each scheduler promises, and that no
// rank waits for another for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kit/bucket_planner.h"
#include "kit/scheduler.h"
#include "tests/conformance/scheduler/scheduler_rig.h"

namespace engine::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Ranks of one run, each with a scheduler of its own, that go on by themselves but for what servers
// and statistics make them wait for.
class ServedRanks {
 public:
  // Equal rigs. `asynchronous`: a pull waits for no other rank.
  ServedRanks(std::vector<SchedulerRig*> rigs, bool asynchronous);

  // Runs all ranks side by side, in turns that `seed` draws, and returns what went wrong, or "".
  std::string Run(uint32_t seed, uint32_t steps);

  const Trace& trace(size_t rank) const { return traces_[rank]; }

 private:
  bool MayEnd(size_t rank, uint32_t task, uint32_t step) const;

  const std::vector<SchedulerRig*> rigs_;
  const bool asynchronous_;
  std::vector<uint32_t> push_of_bucket_;
  std::vector<Trace> traces_;
};

ServedRanks::ServedRanks(std::vector<SchedulerRig*> rigs, bool asynchronous)
    : rigs_(std::move(rigs)), asynchronous_(asynchronous), traces_(rigs_.size()) {
  for (const TaskInfo& task : rigs_.front()->graph.tasks()) {
    if (task.kind != TaskKind::kTransfer || task.transfer != TransferKind::kPush) continue;
    push_of_bucket_.resize(std::max<size_t>(push_of_bucket_.size(), task.bucket + 1));
    push_of_bucket_[task.bucket] = task.id;
  }
}

// A push: at any time. A pull: when all ranks have pushed, those of the begin of a step in the step
// before. Statistics: when all ranks have begun with them.
bool ServedRanks::MayEnd(size_t rank, uint32_t task, uint32_t step) const {
  const TaskInfo& info = rigs_[rank]->graph.tasks()[task];
  if (info.kind != TaskKind::kTransfer) return true;
  if (info.transfer == TransferKind::kPush) return true;
  const bool is_pull = info.transfer == TransferKind::kPull;
  if (is_pull && kit::IsOpeningPull(info) && step == 0) return true;
  for (size_t other = 0; other < rigs_.size(); ++other) {
    const ExecutorModel& there = *rigs_[other]->executor;
    if (is_pull) {
      if (asynchronous_ && other != rank) continue;
      const uint32_t pushed = kit::IsOpeningPull(info) ? step - 1 : step;
      if (!there.WasDone(push_of_bucket_[info.bucket], pushed)) return false;
    } else if (!there.WasStarted(task, step)) {
      return false;
    }
  }
  return true;
}

std::string ServedRanks::Run(uint32_t seed, uint32_t steps) {
  std::mt19937 random(seed);
  for (size_t rank = 0; rank < rigs_.size(); ++rank) {
    const auto may_end = [this, rank](uint32_t task, uint32_t step) {
      return MayEnd(rank, task, step);
    };
    rigs_[rank]->executor->Begin({.steps = steps,
                                  .timing_seed = seed + static_cast<uint32_t>(rank) * 7919,
                                  .flush_seed = seed,
                                  .may_end = may_end},
                                 &traces_[rank]);
  }
  // A rank may be ahead for a while: turns come in runs.
  for (size_t idle = 0; idle < rigs_.size();) {
    const size_t first = random() % rigs_.size();
    idle = 0;
    for (size_t i = 0; i < rigs_.size(); ++i) {
      ExecutorModel& executor = *rigs_[(first + i) % rigs_.size()]->executor;
      uint32_t turns = 0;
      for (const uint32_t most = 1 + random() % 40; turns < most && executor.Turn();) ++turns;
      idle += turns == 0;
    }
  }
  for (size_t rank = 0; rank < rigs_.size(); ++rank) {
    const std::string problem = rigs_[rank]->executor->Outcome();
    if (!problem.empty()) return "rank " + std::to_string(rank) + ": " + problem;
  }
  return "";
}

ModelSketch RandomServed(std::mt19937& random) {
  for (;;) {
    ModelSketch model = ModelSketch::Random(random);
    if (model.served && !model.parameter_counts.empty()) return model;
  }
}

SchedulerRig ServedRig(const std::string& path, uint32_t seed) {
  std::mt19937 random(seed);
  const ModelSketch model = RandomServed(random);
  return SchedulerRig(path, model, &random);
}

class ServedConformance : public testing::TestWithParam<std::string> {};

// Servers hold a pull until all ranks have pushed. Ranks interleave at random.
TEST_P(ServedConformance, NoRankWaitsForAnotherForEver) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig one = ServedRig(GetParam(), seed), two = ServedRig(GetParam(), seed),
                 three = ServedRig(GetParam(), seed);
    std::vector<SchedulerRig*> rigs = {&one, &two};
    if (seed % 3 == 0) rigs.push_back(&three);
    ServedRanks ranks(rigs, /*asynchronous=*/false);
    for (uint32_t run = 0; run < 3; ++run) {
      ASSERT_EQ(ranks.Run(seed * 10 + run, 4), "") << "in run " << run;
      for (size_t rank = 0; rank < rigs.size(); ++rank) {
        ASSERT_EQ(ranks.trace(rank).all.size(), 4 * one.graph.tasks().size());
      }
    }
  }
}

// Without servers that wait and without statistics, ranks need not hear of each other.
TEST_P(ServedConformance, RanksAreAsynchronous) {
  ModelSketch model = ModelSketch::Chain({1000, 100000, 1000});
  model.served = model.asynchronous = true;
  model.tables = {0};
  SchedulerRig one(GetParam(), model), two(GetParam(), model);
  ServedRanks ranks({&one, &two}, /*asynchronous=*/true);
  EXPECT_EQ(ranks.Run(1, 6), "");
  EXPECT_EQ(ServedRanks({&one}, true).Run(2, 6), "");
}

TEST_P(ServedConformance, PlansATableAsABucketOfItsOwn) {
  ModelSketch model = ModelSketch::Chain({100, 1 << 20, 100, 100, 100});
  model.served = true;
  model.tables = {1, 3};
  SchedulerRig rig(GetParam(), model);  // which checks the plan
  const auto is_table = [&](const exec::BucketLayout& bucket) {
    return bucket.spans.size() == 1 &&
           rig.graph.model_info().parameters[bucket.spans[0].parameter].alone != 0;
  };
  EXPECT_EQ(std::count_if(rig.graph.buckets().begin(), rig.graph.buckets().end(), is_table), 2);
}

// A server that orders by priority must not turn another order into one by need.
TEST_P(ServedConformance, HasPrioritiesOnlyIfItOrdersByNeed) {
  ModelSketch model = ModelSketch::Chain({100000, 1000, 200000, 1000});
  model.served = true;
  SchedulerRig rig(GetParam(), model);
  std::vector<int32_t> by_bucket, expected;
  for (const exec::BucketLayout& bucket : rig.graph.buckets()) by_bucket.push_back(bucket.priority);
  const bool by_need = GetParam().find("priority_sched") != std::string::npos;
  for (const exec::BucketLayout& bucket : rig.graph.buckets()) {
    uint32_t first = UINT32_MAX;
    for (const BucketSpan& span : bucket.spans) {
      first = std::min(first, rig.graph.model_info().parameters[span.parameter].first_use);
    }
    expected.push_back(by_need ? -static_cast<int32_t>(first) : 0);
  }
  EXPECT_EQ(by_bucket, expected);
}

INSTANTIATE_TEST_SUITE_P(Plugins, ServedConformance,
                         testing::ValuesIn(PluginPaths({"sequential_sched", "fifo_sched",
                                                        "priority_sched", "dear_sched"})));

// What the search above must find: one transfer at a time, pulls and pushes alike, by need.
class PullsTakeCredit final : public SchedulerBase {
 public:
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kLeader}; }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    return kit::PlanBuckets("test", model, {}, sink);
  }
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    tasks_.assign(tasks.begin(), tasks.end());
    compute_.Reset(tasks, kit::ComputeOrder());
    io_.Reset(tasks, ByNeed());
    return {};
  }
  void On(const SchedulerEvent& event) noexcept override {
    if (event.kind == EventKind::kTaskReady) {
      (tasks_[event.task].lane == Lane::kIo ? io_ : compute_).Insert(event.task);
    } else if (event.kind == EventKind::kTaskDone && tasks_[event.task].lane == Lane::kIo) {
      busy_ = false;
    }
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo && busy_) return kit::Hold();
    const uint32_t task = (lane == Lane::kIo ? io_ : compute_).Pop();
    if (task == kit::kNoTask) return kit::Hold();
    busy_ |= lane == Lane::kIo;
    return kit::Run(task);
  }

 private:
  struct ByNeed {
    bool operator()(const TaskInfo& a, const TaskInfo& b) const noexcept {
      return std::pair(a.needed_by, a.id) < std::pair(b.needed_by, b.id);
    }
  };
  std::vector<TaskInfo> tasks_;
  kit::ReadySet compute_, io_;
  bool busy_ = false;
};

TEST(ServedRanks, FindsPullsThatTakeTheCreditOfPushes) {
  ModelSketch model = ModelSketch::Chain({10, 10, 10, 10});
  model.served = true;
  size_t stuck = 0;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SchedulerRig one(std::make_unique<PullsTakeCredit>(), model);
    SchedulerRig two(std::make_unique<PullsTakeCredit>(), model);
    const std::string problem = ServedRanks({&one, &two}, false).Run(seed, 4);
    stuck += problem.find("nothing that runs can end") != std::string::npos;
  }
  EXPECT_GT(stuck, 10u);
}

// ---- What each of them does, in a chain of three layers with a bucket each; bucket0 is needed last.

EventPlayer ThreeServed(const char* name, const OptionValues::Overrides& options,
                        std::vector<size_t> tables = {}) {
  ModelSketch model = ThreeLayers();
  model.served = true;
  model.tables = std::move(tables);
  return EventPlayer(name, model, options);
}

TEST(SequentialSched, PullsWhenAllIsPushed) {
  // Its buckets are of 4 MiB.
  ModelSketch model = ModelSketch::Chain({1 << 20, 1 << 20});
  model.served = true;
  EventPlayer play("sequential_sched", model);
  EXPECT_THAT(play.Ready({"statistics", "push0", "push1"}), IsEmpty());
  EXPECT_THAT(play.Send(EventKind::kBackwardEnd), ElementsAre("statistics", "push0", "push1"));
  EXPECT_THAT(play.Done({"statistics", "push0"}), IsEmpty());
  EXPECT_THAT(play.Ready({"pull0"}), IsEmpty());
  EXPECT_THAT(play.Done({"push1"}), ElementsAre("pull0"));
  EXPECT_THAT(play.Ready({"pull1"}), ElementsAre("pull1"));
  play.Done({"pull1"});
  play.Ready({"forward0"});
  EXPECT_THAT(play.TakeCompute(), IsEmpty());
  play.Done({"pull0"});
  EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0"));
}

TEST(FifoSched, PushesInReadyOrderAndPullsAtOnce) {
  EventPlayer play = ThreeServed("fifo_sched", {{"fuse_bytes", "0"}});
  EXPECT_THAT(play.Ready({"statistics", "push1"}), ElementsAre("statistics"));  // push0 is first
  EXPECT_THAT(play.Ready({"push0"}), ElementsAre("push0", "push1"));
  play.Done({"push1", "push0"});
  EXPECT_THAT(play.Ready({"pull1", "pull0"}), ElementsAre("pull1", "pull0"));
}

TEST(PrioritySched, PullsTakeNoCreditFromPushes) {
  EventPlayer play = ThreeServed("priority_sched", {{"fuse_bytes", "0"}, {"credit_bytes", "4096"}});
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_THAT(play.Ready({"push0", "push1"}), ElementsAre("push1"));
    play.Tell(EventKind::kTaskDone, {"push1"});
    EXPECT_THAT(play.Ready({"pull1", "push2"}), ElementsAre("pull1", "push2"));  // not push0
    EXPECT_THAT(play.Done({"pull1"}), IsEmpty());
    play.Tell(EventKind::kTaskDone, {"push2"});
    EXPECT_THAT(play.Ready({"pull2"}), ElementsAre("pull2", "push0"));
    play.Done({"push0"});
    EXPECT_THAT(play.Ready({"pull0"}), ElementsAre("pull0"));
    play.Done({"pull0", "pull2"});
  }
}

class Opening : public testing::TestWithParam<std::pair<const char*, const char*>> {};

// Rows that a batch reads, while everything of the step before is still pulled.
TEST_P(Opening, PullsOfRowsAreStartedAtOnce) {
  EventPlayer play = ThreeServed(GetParam().first, {{GetParam().second, "0"}}, {0});
  for (int step = 1; step <= 2; ++step) {
    play.Send(EventKind::kStepBegin);
    EXPECT_THAT(play.Ready({"pull2"}), ElementsAre("pull2"));
    play.Done({"pull2"});
    play.Tell(EventKind::kTaskReady, {"statistics", "push0", "push1", "push2"});
    EXPECT_THAT(play.Send(EventKind::kBackwardEnd), testing::SizeIs(testing::Ge(2)));
    play.Done({"statistics", "push0", "push1", "push2"});
    play.Ready({"pull0", "pull1"});
    play.Send(EventKind::kFlush);
    play.Done({"pull0", "pull1"});
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, Opening,
                         testing::Values(std::pair("fifo_sched", "fuse_bytes"),
                                         std::pair("priority_sched", "fuse_bytes"),
                                         std::pair("dear_sched", "group_bytes")));

}  // namespace
}  // namespace engine::test
