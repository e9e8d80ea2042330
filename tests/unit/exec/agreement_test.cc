// Several ranks in one process: one order of transfers, sharded updates, and ranks that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "engine/ext/grouped_transfers.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

using Schedulers = std::function<std::unique_ptr<Scheduler>(int rank)>;

// Offers groups, each of which is seen to be one that ranks may carry out in any order.
class GroupingCommunicator final : public CommunicatorBase, public GroupedTransfersBase {
 public:
  GroupingCommunicator(Hub& hub, int rank, std::atomic<size_t>* grouped)
      : inner_(hub, rank), grouped_(grouped) {}
  void* Query(std::string_view id) noexcept override { return Offer<GroupedTransfers>(id, this); }
  CommunicatorTraits traits() const noexcept override { return inner_.traits(); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    return inner_.Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override { inner_.Abort(reason); }

  // The hub carries transfers out in order, so the last one ends last.
  Status SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept override {
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

// Each rank has its own order.
template <typename T>
Schedulers WithSeed(uint64_t seed) {
  return [seed](int rank) { return std::make_unique<T>(seed + static_cast<uint64_t>(rank)); };
}

TEST(Agreement, FollowersStartWhatRankZeroDecides) {
  const auto expected = RankWorld().Run();
  ASSERT_THAT(expected[0].status, IsOk());
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    const RankWorld led{.seed = seed, .scheduler = WithSeed<LeadScheduler>(seed * 100)};
    for (const RankResult& result : led.Run()) {
      ASSERT_THAT(result.status, IsOk());
      ASSERT_EQ(result.parameters, expected[0].parameters);
    }
  }
}

// Starts one transfer at a time: a credit that only the end of that one gives back.
class OneAtATime final : public LeadScheduler {
 public:
  using LeadScheduler::LeadScheduler;
  void On(const SchedulerEvent& event) noexcept override {
    const bool ends = event.kind == EventKind::kTaskDone && tasks_[event.task].lane == Lane::kIo;
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
  bool under_way_ = false;
};

// Where transfers meet in any order ranks still wait for each other.
TEST(Agreement, ACreditIsSpentOnTheSameTransfersWhateverTheCommunicatorAsksFor) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    const RankWorld world{.seed = seed,
                          .timeout_ms = 5000,
                          .match = HubMatch::kKey,
                          .scheduler = WithSeed<OneAtATime>(seed * 100)};
    for (const RankResult& result : world.Run()) ASSERT_THAT(result.status, IsOk());
  }
}

TEST(Agreement, ShardedUpdatesGiveTheSameBitsAndAPartOfTheMemory) {
  for (int size : {2, 3}) {
    const auto whole = RankWorld{.size = size}.Run();
    RankWorld world{.size = size, .shard = true, .scheduler = WithSeed<LeadScheduler>(7)};
    // Each rank's share of a bucket is a multiple of a cache line: 3 ranks share 48 elements evenly.
    const size_t elements = 5 * static_cast<size_t>(size == 2 ? 64 : 48);
    world.end = [&](exec::Executor& executor, int) -> Status {
      EXPECT_EQ(executor.updates().states().size_bytes(),
                elements * sizeof(float) / static_cast<size_t>(size));
      return {};
    };
    const auto sharded = world.Run();
    for (const RankResult& result : sharded) {
      ASSERT_THAT(result.status, IsOk());
      EXPECT_EQ(result.parameters, whole[0].parameters) << size << " ranks";
    }
    EXPECT_EQ(sharded[0].states, whole[0].states);
  }
}

TEST(Agreement, StatesAreCollectedInGroupsWhereThereAreGroups) {
  RankWorld world;
  world.prepare = [](Rig& rig) {
    rig.plugins.optimizer = std::make_unique<FakeSgd>(UpdateGate::kSpan, /*states=*/2);
  };
  const auto expected = world.Run();
  world.shard = true;
  std::atomic<size_t> grouped{0};
  world.communicator = [&](Hub& hub, int rank) {
    return std::make_unique<GroupingCommunicator>(hub, rank, &grouped);
  };
  const auto results = world.Run();
  for (const RankResult& result : results) ASSERT_THAT(result.status, IsOk());
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
  const RankWorld world{.timeout_ms = 2000, .scheduler = WithSeed<HoldsTransfers>(1000)};
  for (const RankResult& result : world.Run()) {
    EXPECT_THAT(result.status,
                FailsWith(StatusCode::kPlugin, AllOf(HasSubstr("scheduler 'test_sched': transfer "),
                                                     HasSubstr("submitted all-reduce of "))));
  }
}

// Starts nothing on rank 1.
class SilentScheduler final : public RandomScheduler {
 public:
  Action Next(Lane lane) noexcept override {
    return lane == Lane::kIo ? Action{} : RandomScheduler::Next(lane);
  }
};

TEST(Agreement, ARankThatStartsNothingIsReported) {
  RankWorld world{.timeout_ms = 500};
  world.scheduler = [](int rank) -> std::unique_ptr<Scheduler> {
    if (rank == 1) return std::make_unique<SilentScheduler>();
    return std::make_unique<RandomScheduler>();
  };
  const auto results = world.Run();
  EXPECT_THAT(results[1].status,
              FailsWith(StatusCode::kTimeout,
                        HasSubstr("stalled: scheduler 'test_sched' holds 'transfer statistics'")));
  EXPECT_FALSE(results[0].status.ok());
}

// Rank 1 of two, which follows; the other one is this test.
struct Follower : Rig {
  Hub hub{2, 0, 1};
  std::shared_ptr<MemoryTable> table = std::make_shared<MemoryTable>();
  base::AbortSignal abort;
  MemoryStore own{table, abort}, leader{table, abort};

  explicit Follower(std::unique_ptr<Scheduler> chosen) {
    store = &own;
    options = TestOptions(1, 2, 600000);
    EXPECT_THAT(
        Make(ChainModel(3, 2), std::move(chosen), std::make_unique<HubCommunicator>(hub, 1)),
        IsOk());
  }
  ~Follower() { executor.reset(); }  // it borrows the store
  Status Step() { return executor->Step(ChainBatch(2, 3, 1, 1).Step(1)).status(); }
};

// Nothing of it is under way in the communicator, whose Abort would end it.
TEST(Agreement, ARankThatWaitsForADecisionEndsWithTheRun) {
  Follower rank(std::make_unique<LeadScheduler>(1));
  std::thread ends(
      [&] { rank.executor->Abort(Status::Error(StatusCode::kPeerLost, "rank 0 is gone")); });
  const Status status = rank.Step();
  ends.join();
  EXPECT_THAT(status, FailsWith(StatusCode::kPeerLost, "rank 0 is gone"));
}

// Computes nothing while a transfer is ready that was not started.
class SendsFirst final : public LeadScheduler {
 public:
  void On(const SchedulerEvent& event) noexcept override {
    LeadScheduler::On(event);
    const bool started = event.kind == EventKind::kTaskStarted;
    if (started || (event.kind == EventKind::kTaskReady && tasks_[event.task].lane == Lane::kIo)) {
      holds_ = !started;
      task_ = event.task;
    }
  }
  Action Next(Lane lane) noexcept override {
    if (task_ == 0) return LeadScheduler::Next(lane);
    (holds_ ? held : went_on).set_value(std::exchange(task_, 0));
    return {};
  }
  std::promise<uint32_t> held, went_on;

 private:
  bool holds_ = false;
  uint32_t task_ = 0;
};

// The transfer ends when the other ranks have sent too, so this is not what wakes the compute lane.
TEST(Agreement, AHeldComputeLaneIsAskedAgainWhenATransferStarts) {
  auto chosen = std::make_unique<SendsFirst>();
  SendsFirst& scheduler = *chosen;
  Follower rank(std::move(chosen));
  std::thread leads([&] {
    const uint64_t ticket[2] = {1, scheduler.held.get_future().get()};  // sequence, task
    (void)rank.leader.Post({reinterpret_cast<const char*>(ticket), sizeof(ticket)});
    EXPECT_EQ(scheduler.went_on.get_future().wait_for(std::chrono::seconds(10)),
              std::future_status::ready);
    rank.executor->Abort(Status::Error(StatusCode::kPeerLost, "rank 0 is gone"));
  });
  EXPECT_THAT(rank.Step(), FailsWith(StatusCode::kPeerLost));
  leads.join();
}

// Of rank 1, with one transfer, which opens a step.
struct Tickets {
  base::AbortSignal abort;
  MemoryStore store{std::make_shared<MemoryTable>(), abort};
  exec::TaskGraph graph{
      .tasks = {{.info = {.kind = TaskKind::kTransfer, .lane = Lane::kIo}, .opens_step = true}}};
  exec::OrderAgreement order{graph, {.rank = 1, .world_size = 2}, /*leads=*/true, &store};
};

TEST(Agreement, TicketsAreReadOnlyWhole) {
  Tickets tickets;
  const std::string text(16, '\0');
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(tickets.order.TakeTicket(text.substr(0, size)).code(), StatusCode::kInternal);
  }
  EXPECT_THAT(tickets.order.TakeTicket(text), IsOk());
}

// Rank 0 has made a transfer outside of a step before the one that it announces.
TEST(Agreement, ATicketWaitsForTheTransfersBeforeIt) {
  Tickets tickets;
  RandomScheduler scheduler;
  ASSERT_THAT(scheduler.Begin({&tickets.graph.tasks[0].info, 1}), IsOk());
  exec::StepLoop loop(tickets.graph, scheduler, "test_sched");
  loop.BeginStep(1, 0);
  const uint64_t second[2] = {2, 0};  // sequence, task
  ASSERT_THAT(tickets.order.TakeTicket({reinterpret_cast<const char*>(second), sizeof(second)}),
              IsOk());
  EXPECT_EQ(*tickets.order.NextTicket(loop), trace::kNoTask);
  Transfer first;
  tickets.order.Number(&first);
  EXPECT_EQ(*tickets.order.NextTicket(loop), 0u);
}

}  // namespace
}  // namespace engine::test
