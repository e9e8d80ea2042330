// Ops that see all ranks while they run, and buffers: several ranks in one process.
#include "core/exec/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/hub_communicator.h"
#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/exec/ranks.h"
#include "tests/unit/exec/replica_branches.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class AnyOrderCommunicator final : public Communicator {
 public:
  AnyOrderCommunicator(Hub& hub, int rank, uint32_t kinds = 31)
      : hub_(hub), rank_(rank), kinds_(kinds) {}
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = kinds_, .dtypes = 31, .ordered = 0};
  }
  // From the compute lane and from threads that pump, but never from two at once.
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    EXPECT_FALSE(busy_.exchange(true)) << "two threads submit at once";
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    const Status status = hub_.Submit(rank_, transfer, out);
    busy_ = false;
    return status;
  }
  void Abort(const Status& reason) noexcept override { hub_.Abort(reason); }

 private:
  Hub& hub_;
  const int rank_;
  const uint32_t kinds_;
  std::atomic<bool> busy_{false};
};

struct RankResult {
  Status status;
  std::vector<float> losses;
  std::vector<float> parameters, buffers, evaluation;
  std::vector<bool> saw_replicas;  // of the forward calls of one op
};

// Steps of 6, 6 and 2 samples, again and again.
struct World {
  int size = 2;
  bool any_order = false;  // one communicator for everything
  bool shard = false;
  const char* center = "center";
  int64_t micro_batches = 1;
  uint64_t steps = 9;
  uint64_t seed = 0;  // of the schedulers, another on each rank
  int64_t timeout_ms = 20000;
  int absent = -1;  // a rank that makes no step

  RankResult RunRank(int rank, Hub& hub, Hub& gathers, base::Store& store) const {
    RankResult result;
    HubCommunicator for_replicas(gathers, rank);
    const uint64_t own_seed = seed == 0 ? 0 : seed + static_cast<uint64_t>(rank);
    std::unique_ptr<Communicator> network = std::make_unique<HubCommunicator>(hub, rank);
    std::unique_ptr<Scheduler> scheduler = std::make_unique<LeadScheduler>(own_seed);
    if (any_order) {
      network = std::make_unique<AnyOrderCommunicator>(hub, rank);
      // Where rank 0 leads, transfers of the others are submitted by the thread that brings tickets,
      // beside the gathers of the compute lane.
      if (seed != 100) scheduler = std::make_unique<RandomScheduler>(own_seed);
    }
    Rig rig;
    rig.store = &store;
    rig.ops = ReplicaOps();
    rig.options = TestOptions(rank, size, timeout_ms);
    rig.options.shard_optimizer = shard;
    rig.options.micro_batches = micro_batches;
    rig.options.replicas = any_order ? network.get() : &for_replicas;
    const int64_t at_once = (6 + micro_batches - 1) / micro_batches;
    result.status = rig.Make(Branches(at_once, center), std::move(scheduler), std::move(network));
    if (result.status.ok()) result.status = Train(*rig.executor, rank, &result);
    return result;
  }

  Status Train(exec::Executor& executor, int rank, RankResult* result) const {
    ENGINE_RETURN_IF_ERROR(executor.ShareParameters());
    for (uint64_t step = 1; step <= steps && rank != absent; ++step) {
      const Batch batch(step, step % 3 == 0 ? 2 : 6, rank, size);
      const auto done = executor.Step(batch.Input(step));
      if (!done.ok()) return done.status();
      result->losses.push_back(done->statistics.loss_sum / done->statistics.count);
      if (step != 4) continue;
      ENGINE_RETURN_IF_ERROR(executor.Flush());
      ENGINE_RETURN_IF_ERROR(executor.ShareBuffers());
    }
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    exec::ModelMemory& memory = executor.memory();
    if (rank == absent) return {};
    const auto tensors = [&](bool buffers) {
      std::vector<float> values;
      for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
        if (memory.graph().parameters[p].buffer != buffers) continue;
        const TensorView view = memory.parameter(static_cast<int32_t>(p));
        values.insert(values.end(), view.f32(), view.f32() + view.count());
      }
      return values;
    };
    result->parameters = tensors(false);
    result->buffers = tensors(true);
    ENGINE_RETURN_IF_ERROR(executor.ShareBuffers());
    const Batch batch(1, 6, 0, 1);
    const int64_t samples = memory.graph().max_samples;
    ENGINE_RETURN_IF_ERROR(memory.SetBatch(batch.input.data(), batch.target.data(), samples));
    ENGINE_RETURN_IF_ERROR(memory.RunForward());
    const float* const logits = memory.logits().f32();
    result->evaluation.assign(logits, logits + samples * kWidth);
    for (const OpCall& call : CenterNamed(memory.graph(), "first").forward_calls) {
      result->saw_replicas.push_back(call.replicas != nullptr);
    }
    return {};
  }

  std::vector<RankResult> Run() const {
    Hub hub({.world_size = size,
             .max_delay_us = 60,
             .match = any_order ? HubMatch::kKey : HubMatch::kSequence});
    Hub gathers({.world_size = size, .max_delay_us = 60});
    return RunRanks<RankResult>(
        size, [&](int rank, base::Store& store) { return RunRank(rank, hub, gathers, store); });
  }
};

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << what << " at " << i;
  }
}

TEST(Replicas, SeveralRanksEqualOneWithTheWholeBatchInAnyOrderOfTasks) {
  World alone;
  alone.size = 1;
  const RankResult expected = alone.Run()[0];
  ASSERT_TRUE(expected.status.ok()) << expected.status.message();
  ASSERT_NE(expected.buffers, std::vector<float>(expected.buffers.size(), 0));
  for (const int size : {2, 3}) {
    for (const bool any_order : {false, true}) {
      for (const bool shard : {false, true}) {
        for (const uint64_t seed : {0, 100, 200}) {
          World world;
          world.size = size;
          world.any_order = any_order;
          world.shard = shard;
          world.seed = seed;
          const auto results = world.Run();
          const std::string what = std::to_string(size) + " ranks, any_order " +
                                   std::to_string(any_order) + ", shard " + std::to_string(shard) +
                                   ", seed " + std::to_string(seed);
          for (const RankResult& result : results) {
            ASSERT_TRUE(result.status.ok()) << what << ": " << result.status.message();
            ExpectNear(result.losses, expected.losses, what);
            ExpectNear(result.parameters, expected.parameters, what);
            ExpectNear(result.evaluation, expected.evaluation, what);
            // Without any exchange of them.
            EXPECT_EQ(result.buffers, results[0].buffers) << what;
            ExpectNear(result.buffers, expected.buffers, what);
          }
        }
      }
    }
  }
}

// Each rank has up to 3 samples, in parts of 1 and 0.
TEST(Replicas, MicroBatchesGatherInOneOrderOnAllRanks) {
  for (const bool any_order : {false, true}) {
    for (const bool shard : {false, true}) {
      RankResult expected;
      for (const uint64_t seed : {0, 100, 200}) {
        World world;
        world.any_order = any_order;
        world.shard = shard;
        world.micro_batches = 4;
        world.seed = seed;
        for (const RankResult& result : world.Run()) {
          ASSERT_TRUE(result.status.ok()) << result.status.message();
          if (expected.losses.empty()) expected = result;
          EXPECT_EQ(result.losses, expected.losses);
          EXPECT_EQ(result.parameters, expected.parameters);
          EXPECT_EQ(result.buffers, expected.buffers) << "without any exchange of them";
        }
      }
    }
  }
}

TEST(Replicas, BuffersOfOneRankAloneAreThoseOfRankZeroWhenShared) {
  World world;
  world.center = "center_alone";
  world.size = 3;
  const auto results = world.Run();
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    EXPECT_EQ(result.parameters, results[0].parameters);
    EXPECT_EQ(result.evaluation, results[0].evaluation);
  }
  EXPECT_NE(results[1].buffers, results[0].buffers) << "the test compares nothing";
}

// Rank 1 of two, whose other end is this test.
struct SingleRank : Rig {
  explicit SingleRank(std::unique_ptr<Communicator> network, Communicator* replicas = nullptr) {
    ops = ReplicaOps();
    options = TestOptions(1, 2, 600000, "test_comm");
    options.replicas = replicas != nullptr ? replicas : network.get();
    status = Make(Branches(6), std::make_unique<RandomScheduler>(), std::move(network));
  }
  Result<exec::StepResult> Step() { return executor->Step(Batch(1, 6, 1, 2).Input(1)); }

  Status status;
};

TEST(Replicas, OpsAreToldWhereTheyAre) {
  Rig rig;
  ASSERT_TRUE(rig.Make(Branches(6)).ok());
  Batch batch(1, 6, 0, 1);
  exec::StepInput input = batch.Input(7);
  input.first_sample = 40;
  ASSERT_TRUE(rig.Step(input).ok());
  ASSERT_TRUE(rig.executor->memory().RunForward().ok());
  const graph::Graph& graph = rig.executor->memory().graph();
  for (const char* name : {"first", "a.center"}) {
    const std::vector<OpCall>& calls = CenterNamed(graph, name).forward_calls;
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0].step, 7u);
    EXPECT_EQ(calls[0].first_sample, 40u);
    EXPECT_EQ(calls[0].training, 1u);
    EXPECT_EQ(calls[0].replicas, nullptr) << "one rank has no replicas";
    EXPECT_EQ(calls[1].first_sample, 0u);
    EXPECT_EQ(calls[1].training, 0u);
    EXPECT_EQ(graph.nodes[calls[0].node].name, name);
    EXPECT_EQ(calls[1].node, calls[0].node);
  }
}

TEST(Replicas, OnlyOpsThatAskSeeThemAndOnlyWhileTheyTrain) {
  for (const bool asks : {true, false}) {
    World world;
    world.center = asks ? "center" : "center_alone";
    world.steps = 2;
    for (const RankResult& result : world.Run()) {
      EXPECT_EQ(result.saw_replicas, (std::vector<bool>{asks, asks, false}));
    }
  }
}

TEST(Replicas, AbortEndsARankThatWaitsInAnOp) {
  for (const bool own : {true, false}) {
    Hub hub({.world_size = 2, .match = HubMatch::kKey});
    Hub gathers({.world_size = 2});
    HubCommunicator for_replicas(gathers, 1);
    SingleRank rank(std::make_unique<AnyOrderCommunicator>(hub, 1), own ? &for_replicas : nullptr);
    ASSERT_TRUE(rank.status.ok()) << rank.status.message();
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Status reason = Status::Error(StatusCode::kPeerLost, "rank 0 is gone").WithRank(0);
      rank.executor->Abort(reason);
      // As whoever owns the communicator does.
      if (!own) hub.Abort(reason);
    });
    const auto done = rank.Step();
    ends.join();
    EXPECT_EQ(done.status().code(), StatusCode::kPeerLost);
    EXPECT_THAT(done.status().message(), HasSubstr("rank 0 is gone"));
  }
}

// The failure of a gradient's transfer is told to the communicator on which the op waits.
TEST(Replicas, AFailureElsewhereEndsARankThatWaitsInAnOp) {
  Hub gathers({.world_size = 2, .compares_keys = false});  // rank 0 is played, without keys
  HubCommunicator for_replicas(gathers, 1);
  auto network = std::make_unique<FakeCommunicator>(2, std::chrono::milliseconds(30));
  network->fail_sequence = 1;  // the statistics, which come before the gathers of backward
  std::thread other([&] {
    HubCommunicator peer(gathers, 0);
    std::vector<float> all(2 * (kWidth + 1));
    // The forward pass has six gathers.
    for (uint64_t i = 1; i <= 6; ++i) {
      Work* work = nullptr;
      const Status submitted = peer.Submit({.kind = TransferKind::kAllGather,
                                            .send = all.data(),
                                            .recv = all.data(),
                                            .count = kWidth + 1,
                                            .sequence = i},
                                           &work);
      if (submitted.ok()) (void)work->WaitHost(20000);
    }
  });
  SingleRank rank(std::move(network), &for_replicas);
  const auto done = rank.Step();
  other.join();
  EXPECT_EQ(done.status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(done.status().message(), HasSubstr("lost connection to rank 1"));
}

TEST(Replicas, ARankThatDoesNotComeIsNamedWithTheOp) {
  World world;
  world.absent = 0;
  world.timeout_ms = 200;
  const auto results = world.Run();
  EXPECT_EQ(results[1].status.code(), StatusCode::kTimeout);
  EXPECT_EQ(results[1].status.rank(), 0);
  EXPECT_THAT(std::string(results[1].status.message()),
              AllOf(HasSubstr("forward of 'first' (center)"), HasSubstr("gathering from all ranks"),
                    HasSubstr("rank 0 has not submitted")));
}

TEST(Replicas, ACommunicatorThatCannotGatherIsRefused) {
  Hub hub({.world_size = 2, .match = HubMatch::kKey});
  const SingleRank rank(std::make_unique<AnyOrderCommunicator>(
      hub, 1, Bit(TransferKind::kAllReduce) | Bit(TransferKind::kBroadcast)));
  EXPECT_EQ(rank.status.code(), StatusCode::kConfig);
  EXPECT_THAT(std::string(rank.status.message()),
              AllOf(HasSubstr("layer 'first' (center)"), HasSubstr("cannot gather")));
}

TEST(Replicas, WhereNothingMovesAllRanksLookLikeThisOne) {
  FakeCommunicator network;
  network.described.no_op = 1;
  HostDevice device;
  exec::Submitter submitter(network, "fake", nullptr);
  exec::CommunicatorReplicas replicas(submitter, device, {.rank = 2, .world_size = 3}, 1, 1000);
  const float own[2] = {1, 2};
  std::vector<float> all(6, -1);
  ASSERT_TRUE(replicas.Gather(own, 2, all.data(), nullptr).ok());
  EXPECT_EQ(all, (std::vector<float>{1, 2, 1, 2, 1, 2}));
  all = {0, 0, 0, 0, 5, 6};
  ASSERT_TRUE(replicas.Gather(&all[4], 2, all.data(), nullptr).ok());
  EXPECT_EQ(all, (std::vector<float>{5, 6, 5, 6, 5, 6}));
}

TEST(Replicas, KeysAreThoseOfTaskAndCallAndTheSameInEachStep) {
  FakeCommunicator network(3);
  HostDevice device;
  const auto keys = [&](int32_t rank, uint64_t plan) {
    network.submitted.clear();
    exec::Submitter submitter(network, "fake", nullptr);
    exec::CommunicatorReplicas replicas(submitter, device, {.rank = rank, .world_size = 3}, plan,
                                        1000);
    std::vector<float> all(3);
    for (const uint32_t task : {4, 7, 4}) {
      replicas.Begin(task);
      for (int call = 0; call < 2; ++call) {
        EXPECT_TRUE(replicas.Gather(&all[static_cast<size_t>(rank)], 1, all.data(), nullptr).ok());
      }
    }
    std::vector<uint64_t> found;
    for (const Transfer& transfer : network.submitted) found.push_back(transfer.key);
    return found;
  };
  const std::vector<uint64_t> first = keys(0, 1);
  ASSERT_EQ(first.size(), 6u);
  EXPECT_EQ(keys(1, 1), first);
  EXPECT_NE(keys(1, 2), first);
  EXPECT_EQ((std::vector<uint64_t>{first[4], first[5]}),
            (std::vector<uint64_t>{first[0], first[1]}));
  std::vector<uint64_t> distinct(first.begin(), first.begin() + 4);
  std::sort(distinct.begin(), distinct.end());
  EXPECT_EQ(std::unique(distinct.begin(), distinct.end()), distinct.end());
  EXPECT_THAT(distinct, Each(::testing::Ne(0u)));
}

// Counts what it is asked about.
class CountingHook final : public PassiveHook {
 public:
  explicit CountingHook(uint32_t* count) : PassiveHook({}), count_(count) {}
  Status Setup(uint32_t count) noexcept override {
    *count_ = count;
    return {};
  }

 private:
  uint32_t* const count_;
};

TEST(Buffers, AreNotTrainedAndLieBehindAllParameters) {
  uint32_t hooked = 0;
  std::vector<std::unique_ptr<GradientHook>> hooks;
  hooks.push_back(std::make_unique<CountingHook>(&hooked));
  Rig rig;
  // A prefix that also fits a buffer changes nothing for it.
  ASSERT_TRUE(rig.Make(Branches(6, "center_alone", {"a."}), std::make_unique<RandomScheduler>(),
                       std::make_unique<FakeCommunicator>(), std::move(hooks))
                  .ok());
  const exec::ModelMemory& memory = rig.executor->memory();
  const exec::FlatLayout& layout = memory.layout();
  EXPECT_EQ(rig.executor->unreached_parameters(), std::vector<std::string>{"dead.scale.weight"});
  uint32_t trained = 0;
  for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
    const graph::Parameter& parameter = memory.graph().parameters[p];
    const int64_t end = layout.offset[p] + parameter.shape.Count();
    if (parameter.buffer) {
      EXPECT_FALSE(parameter.trainable);
      EXPECT_GE(layout.offset[p], layout.buffer_begin) << parameter.name;
      EXPECT_LE(end, layout.total_count);
      EXPECT_EQ(memory.program().of_parameter[p], graph::kNone);
    } else {
      EXPECT_LE(end, layout.buffer_begin) << parameter.name;
    }
    trained += memory.program().of_parameter[p] != graph::kNone ? 1 : 0;
  }
  EXPECT_EQ(layout.parameters.size(), trained);
  EXPECT_EQ(hooked, trained);
  for (const exec::Task& task : rig.executor->tasks().tasks) {
    for (int32_t read : task.reads) {
      EXPECT_FALSE(memory.graph().parameters[layout.parameters[static_cast<size_t>(read)]].buffer);
    }
  }
  const Batch batch(1, 6, 0, 1);
  ASSERT_TRUE(rig.Step(batch.Input(1)).ok());
  for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
    if (!memory.graph().parameters[p].buffer) continue;
    const float* values = memory.parameter(static_cast<int32_t>(p)).f32();
    // Also those of the frozen layers of block a.
    EXPECT_NE(std::vector<float>(values, values + kWidth), std::vector<float>(kWidth, 0))
        << memory.graph().parameters[p].name;
  }
}

}  // namespace
}  // namespace engine::test
