// Several ranks in one process: one order of transfers, sharded updates, and ranks that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "engine/ext/grouped_transfers.h"
#include "tests/support/hub_communicator.h"
#include "tests/unit/exec/ranks.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 48;
constexpr int64_t kSamples = 2;

graph::Graph Chain() {
  return ChainModel(kWidth, kSamples);
}

// Offers groups, each of which is seen to be one that ranks may carry out in any order.
class GroupingCommunicator final : public Communicator, public GroupedTransfers {
 public:
  GroupingCommunicator(Hub& hub, int rank, std::atomic<size_t>* grouped)
      : inner_(hub, rank), grouped_(grouped) {}
  void* Query(std::string_view id) noexcept override {
    return id == kGroupedTransfersId ? static_cast<GroupedTransfers*>(this) : nullptr;
  }
  CommunicatorTraits traits() const noexcept override { return inner_.traits(); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    return inner_.Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override { inner_.Abort(reason); }

  // The hub carries transfers out in order, so the last one ends last.
  Status SubmitGroup(std::span<const Transfer> transfers, Work** out) noexcept override {
    for (size_t i = 0; i < transfers.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_TRUE(Apart(transfers[i], transfers[j]));
      ENGINE_RETURN_IF_ERROR(inner_.Submit(transfers[i], out));
      if (i + 1 < transfers.size()) (*out)->Release();
    }
    grouped_->fetch_add(transfers.size());
    return {};
  }

 private:
  static bool Apart(const Transfer& a, const Transfer& b) {
    const auto end = [](const Transfer& t) { return static_cast<float*>(t.recv) + 2 * t.count; };
    return end(a) <= b.recv || end(b) <= a.recv;
  }

  HubCommunicator inner_;
  std::atomic<size_t>* const grouped_;
};

class TwoStates final : public Optimizer {
 public:
  OptimizerTraits traits() const noexcept override {
    return {.state_count = 2, .state_names = {{"count"}, {"sum"}}};
  }
  Status Update(const UpdateCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) {
      call.value[i] -= call.learning_rate * call.gradient[i] * call.gradient_scale;
      call.states[0][i] += 1;
      call.states[1][i] += call.gradient[i];
    }
    return {};
  }
};

struct RankResult {
  Status status;
  std::vector<float> parameters;  // in graph order, without padding
  size_t state_bytes = 0;
  std::vector<float> states;  // rank 0, collected
};

struct World {
  int size = 2;
  int64_t max_delay_us = 100;
  bool shard = false;
  bool two_states = false;
  bool any_order = false;                  // transfers meet by their keys
  std::atomic<size_t>* grouped = nullptr;  // counts transfers; null: without groups
  uint64_t steps = 12;
  int64_t timeout_ms = 5000;
  std::function<std::unique_ptr<Scheduler>(int rank)> scheduler;

  RankResult RunRank(int rank, Hub& hub, base::Store& store) const {
    RankResult result;
    std::unique_ptr<Communicator> network =
        std::make_unique<HubCommunicator>(hub, rank, any_order ? 0 : 1);
    if (grouped != nullptr) {
      network = std::make_unique<GroupingCommunicator>(hub, rank, grouped);
    }
    Rig rig;
    rig.store = &store;
    rig.options = TestOptions(rank, size, timeout_ms);
    rig.options.shard_optimizer = shard;
    if (two_states) rig.plugins.optimizer = std::make_unique<TwoStates>();
    result.status = rig.Make(Chain(), scheduler(rank), std::move(network));
    if (result.status.ok()) result.status = Train(*rig.executor, rank, &result);
    return result;
  }

  Status Train(exec::Executor& executor, int rank, RankResult* result) const {
    ENGINE_RETURN_IF_ERROR(executor.ShareParameters());
    for (uint64_t step = 1; step <= steps; ++step) {
      const ChainBatch batch(kSamples * kWidth, step, rank);
      const auto done = executor.Step(batch.Step(step, kSamples));
      if (!done.ok()) return done.status();
      if (step % 5 == 0) ENGINE_RETURN_IF_ERROR(executor.Flush());
    }
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    ENGINE_RETURN_IF_ERROR(executor.CollectStates());
    result->parameters = ParametersOf(executor.memory());
    for (int32_t s = 0; s < executor.updates().optimizer().state_count; ++s) {
      const std::vector<float> states = StatesOf(executor, s);
      result->states.insert(result->states.end(), states.begin(), states.end());
    }
    result->state_bytes = executor.updates().states().size_bytes();
    return {};
  }

  std::vector<RankResult> Run(uint32_t seed = 1) const {
    Hub hub({.world_size = size,
             .max_delay_us = max_delay_us,
             .seed = seed,
             .match = any_order ? HubMatch::kKey : HubMatch::kSequence});
    return RunRanks<RankResult>(
        size, [&](int rank, base::Store& store) { return RunRank(rank, hub, store); });
  }
};

std::unique_ptr<Scheduler> InSequence(int) {
  return std::make_unique<RandomScheduler>();
}

TEST(Agreement, FollowersStartWhatRankZeroDecides) {
  World world;
  world.scheduler = InSequence;
  const auto expected = world.Run();
  ASSERT_TRUE(expected[0].status.ok()) << expected[0].status.message();
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    World led = world;
    led.scheduler = [&](int rank) {
      return std::make_unique<LeadScheduler>(seed * 100 + static_cast<uint64_t>(rank));
    };
    for (const RankResult& result : led.Run(seed)) {
      ASSERT_TRUE(result.status.ok()) << "seed " << seed << ": " << result.status.message();
      ASSERT_EQ(result.parameters, expected[0].parameters) << "seed " << seed;
    }
  }
}

// Starts one transfer at a time: a credit that only the end of that one gives back.
class OneAtATime final : public RandomScheduler {
 public:
  using RandomScheduler::RandomScheduler;
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kLeader}; }
  Status Begin(std::span<const TaskInfo> tasks) noexcept override {
    for (const TaskInfo& task : tasks) lanes_.push_back(task.lane);
    return RandomScheduler::Begin(tasks);
  }
  void On(const SchedulerEvent& event) noexcept override {
    const bool ends = event.kind == EventKind::kTaskDone && lanes_[event.task] == Lane::kIo;
    if (ends) under_way_ = false;
    RandomScheduler::On(event);
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kCompute) return RandomScheduler::Next(lane);
    if (under_way_) return {};
    const Action action = RandomScheduler::Next(lane);
    under_way_ = action.kind == ActionKind::kRun;
    return action;
  }

 private:
  std::vector<Lane> lanes_;
  bool under_way_ = false;
};

// Where transfers meet in any order ranks still wait for each other.
TEST(Agreement, ACreditIsSpentOnTheSameTransfersWhateverTheCommunicatorAsksFor) {
  World world;
  world.any_order = true;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    world.scheduler = [&](int rank) {
      return std::make_unique<OneAtATime>(seed * 100 + static_cast<uint64_t>(rank));
    };
    for (const RankResult& result : world.Run(seed)) {
      ASSERT_TRUE(result.status.ok()) << "seed " << seed << ": " << result.status.message();
    }
  }
}

TEST(Agreement, ShardedUpdatesGiveTheSameBitsAndAPartOfTheMemory) {
  for (int size : {2, 3}) {
    World world;
    world.size = size;
    world.scheduler = InSequence;
    const auto whole = world.Run();
    world.shard = true;
    world.scheduler = [](int rank) {
      return std::make_unique<LeadScheduler>(7 + static_cast<uint64_t>(rank));
    };
    const auto sharded = world.Run();
    for (int rank = 0; rank < size; ++rank) {
      const RankResult& result = sharded[static_cast<size_t>(rank)];
      ASSERT_TRUE(result.status.ok()) << result.status.message();
      EXPECT_EQ(result.parameters, whole[0].parameters) << "rank " << rank << " of " << size;
      // Each rank's share of a bucket is a multiple of a cache line: 3 ranks share 48 elements
      // evenly.
      const size_t elements = 5 * static_cast<size_t>(size == 2 ? 64 : 48);
      EXPECT_EQ(result.state_bytes, elements * sizeof(float) / static_cast<size_t>(size));
    }
    EXPECT_EQ(sharded[0].states, whole[0].states);
  }
}

TEST(Agreement, StatesAreCollectedInGroupsWhereThereAreGroups) {
  World world;
  world.two_states = true;
  world.scheduler = InSequence;
  const auto expected = world.Run();
  world.shard = true;
  std::atomic<size_t> grouped{0};
  world.grouped = &grouped;
  const auto results = world.Run();
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status.message();
  }
  EXPECT_EQ(results[0].states, expected[0].states);
  EXPECT_FALSE(results[0].states.empty());
  EXPECT_EQ(grouped, 2u * 5u * 2u) << "both states of five buckets on two ranks";
}

// Says that its order is static, and takes another one on each rank, when all is ready.
class HoldsTransfers final : public RandomScheduler {
 public:
  using RandomScheduler::RandomScheduler;
  void On(const SchedulerEvent& event) noexcept override {
    held_ = event.kind == EventKind::kStepBegin || (held_ && event.kind != EventKind::kBackwardEnd);
    RandomScheduler::On(event);
  }
  Action Next(Lane lane) noexcept override {
    return lane == Lane::kIo && held_ ? Action{} : RandomScheduler::Next(lane);
  }

 private:
  bool held_ = false;
};

TEST(Agreement, RanksThatDisagreeAreNamedOnAllOfThem) {
  World world;
  world.scheduler = [](int rank) {
    return std::make_unique<HoldsTransfers>(1000 + static_cast<uint64_t>(rank));
  };
  world.timeout_ms = 2000;
  int named = 0;
  for (const RankResult& result : world.Run()) {
    ASSERT_FALSE(result.status.ok());
    EXPECT_EQ(result.status.code(), StatusCode::kPlugin);
    named += ::testing::Matches(AllOf(HasSubstr("scheduler 'test_sched': transfer "),
                                      HasSubstr("submitted all-reduce of ")))(
        std::string(result.status.message()));
  }
  EXPECT_EQ(named, 2);
}

// Starts nothing on rank 1.
class SilentScheduler final : public RandomScheduler {
 public:
  Action Next(Lane lane) noexcept override {
    return lane == Lane::kIo ? Action{} : RandomScheduler::Next(lane);
  }
};

TEST(Agreement, ARankThatStartsNothingIsReported) {
  World world;
  world.timeout_ms = 500;
  world.scheduler = [](int rank) -> std::unique_ptr<Scheduler> {
    if (rank == 1) return std::make_unique<SilentScheduler>();
    return std::make_unique<RandomScheduler>();
  };
  const auto results = world.Run();
  EXPECT_EQ(results[1].status.code(), StatusCode::kTimeout);
  EXPECT_THAT(std::string(results[1].status.message()),
              HasSubstr("stalled: scheduler 'test_sched' holds 'transfer statistics'"));
  EXPECT_FALSE(results[0].status.ok());
}

// Nothing of it is under way in the communicator, whose Abort would end it.
TEST(Agreement, ARankThatWaitsForADecisionEndsWithTheRun) {
  Hub hub(2, 0, 1);
  auto table = std::make_shared<test::MemoryTable>();
  base::AbortSignal abort;
  test::MemoryStore store(table, abort);
  Rig rig;
  rig.store = &store;
  rig.options = TestOptions(1, 2, 600000);
  const Status made = rig.Make(Chain(), std::make_unique<LeadScheduler>(1),
                               std::make_unique<HubCommunicator>(hub, 1));
  ASSERT_TRUE(made.ok()) << made.message();
  std::thread ends(
      [&] { rig.executor->Abort(Status::Error(StatusCode::kPeerLost, "rank 0 is gone")); });
  const ChainBatch batch(kSamples * kWidth, 1, 1);
  const auto done = rig.executor->Step(batch.Step(1, kSamples));
  ends.join();
  EXPECT_EQ(done.status().code(), StatusCode::kPeerLost);
  EXPECT_STREQ(done.status().message(), "rank 0 is gone");
}

TEST(Agreement, TicketsAreReadOnlyWhole) {
  base::AbortSignal abort;
  test::MemoryStore store(std::make_shared<test::MemoryTable>(), abort);
  exec::TaskGraph graph;
  graph.tasks.resize(1);
  exec::OrderAgreement order(graph, {.rank = 1, .world_size = 2}, /*leads=*/true, &store);
  const std::string text(16, '\0');
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(order.TakeTicket(text.substr(0, size)).code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(order.TakeTicket(text).ok());
}

// Rank 0 has made a transfer outside of a step before the one that it announces.
TEST(Agreement, ATicketWaitsForTheTransfersBeforeIt) {
  base::AbortSignal abort;
  test::MemoryStore store(std::make_shared<test::MemoryTable>(), abort);
  exec::TaskGraph graph;
  graph.tasks.push_back({.info = {.kind = TaskKind::kTransfer, .lane = Lane::kIo}});
  graph.tasks[0].opens_step = true;
  RandomScheduler scheduler;
  ASSERT_TRUE(scheduler.Begin(std::vector<TaskInfo>{graph.tasks[0].info}).ok());
  exec::StepLoop loop(graph, scheduler, "test_sched");
  loop.BeginStep(1, 0);
  exec::OrderAgreement order(graph, {.rank = 1, .world_size = 2}, /*leads=*/true, &store);
  const uint64_t second[2] = {2, 0};  // sequence, task
  ASSERT_TRUE(order.TakeTicket({reinterpret_cast<const char*>(second), sizeof(second)}).ok());
  EXPECT_EQ(*order.NextTicket(loop), trace::kNoTask);
  Transfer first;
  order.Number(&first);
  EXPECT_EQ(*order.NextTicket(loop), 0u);
}

}  // namespace
}  // namespace engine::test
