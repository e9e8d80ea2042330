// Ops that see all ranks while they run, and buffers: several ranks in one process.
#include "core/exec/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 5;

// Two branches, so that schedulers can choose, and gathers whose results later ones depend on.
graph::Graph Branches(int64_t max_samples, const char* center = "center",
                      const std::vector<std::string>& frozen = {}) {
  Net net(ReplicaOps(), max_samples, {kWidth});
  ModelValue h = net.Apply("first", center, {net.Apply("stem", "scale", {Net::kX})});
  for (const std::string block : {"a", "b"}) {
    const ModelValue f =
        net.Apply(block + ".center", center, {net.Apply(block + ".scale", "scale", {h})});
    const ModelValue g =
        net.Apply(block + ".other", center, {net.Apply(block + ".shift", "shift", {h})});
    h = net.Apply(block + ".scale2", "scale", {net.Apply(block + ".add", "add", {f, g})});
  }
  net.Apply("dead", center, {net.Apply("dead.scale", "scale", {h})});
  return net.Finish(net.Apply("last", "shift", {h}), frozen);
}

// The share of a rank of a step; larger ones come first.
StepBatch BranchBatch(uint64_t step, int64_t global_samples, int rank, int ranks) {
  const int64_t share = global_samples / ranks, larger = global_samples % ranks;
  StepBatch batch{.samples = share + (rank < larger ? 1 : 0),
                  .first_sample = rank * share + std::min<int64_t>(rank, larger),
                  .rate = 0.05f};
  for (int64_t k = 0; k < batch.samples * kWidth; ++k) {
    const auto i = static_cast<uint64_t>(batch.first_sample * kWidth + k);
    batch.input.push_back(static_cast<float>((7 * i + 3 * step) % 11) - 5);
    batch.target.push_back(static_cast<int32_t>((i + step) % 3));
  }
  return batch;
}

class AnyOrderCommunicator final : public CommunicatorBase {
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

struct Trained : RankResult {
  std::vector<float> weights, buffers, evaluation;
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

  std::vector<Trained> Run() const {
    std::vector<Trained> trained(static_cast<size_t>(size));
    RankWorld world{.size = size,
                    .steps = steps,
                    .timeout_ms = timeout_ms,
                    .shard = shard,
                    .match = any_order ? HubMatch::kKey : HubMatch::kSequence};
    world.model = [this] { return Branches((6 + micro_batches - 1) / micro_batches, center); };
    world.scheduler = [this](int rank) -> std::unique_ptr<Scheduler> {
      const uint64_t own = seed == 0 ? 0 : seed + static_cast<uint64_t>(rank);
      // Where rank 0 leads, transfers of the others are submitted by the thread that brings tickets,
      // beside the gathers of the compute lane.
      if (any_order && seed != 100) return std::make_unique<RandomScheduler>(own);
      return std::make_unique<LeadScheduler>(own);
    };
    if (any_order) {
      world.communicator = [](Hub& hub, int rank) {
        return std::make_unique<AnyOrderCommunicator>(hub, rank);
      };
    }
    world.prepare = [this](Rig& rig) {
      rig.ops = ReplicaOps();
      rig.options.micro_batches = micro_batches;
    };
    world.batch = [this](int rank, uint64_t step) {
      return BranchBatch(step, step % 3 == 0 ? 2 : 6, rank, size);
    };
    world.absent = absent;
    world.end = [&](exec::Executor& executor, int rank) {
      return Look(executor, &trained[static_cast<size_t>(rank)]);
    };
    const auto results = world.Run();
    for (size_t r = 0; r < trained.size(); ++r) static_cast<RankResult&>(trained[r]) = results[r];
    return trained;
  }

  static Status Look(exec::Executor& executor, Trained* result) {
    exec::ModelMemory& memory = executor.memory();
    for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
      const TensorView view = memory.parameter(static_cast<int32_t>(p));
      auto& values = memory.graph().parameters[p].buffer ? result->buffers : result->weights;
      values.insert(values.end(), view.f32(), view.f32() + view.count());
    }
    ENGINE_RETURN_IF_ERROR(executor.ShareBuffers());
    const StepBatch batch = BranchBatch(1, 6, 0, 1);
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
};

TEST(Replicas, SeveralRanksEqualOneWithTheWholeBatchInAnyOrderOfTasks) {
  const Trained expected = World{.size = 1}.Run()[0];
  ASSERT_THAT(expected.status, IsOk());
  ASSERT_NE(expected.buffers, std::vector<float>(expected.buffers.size(), 0));
  for (int variant = 0; variant < 24; ++variant) {
    const World world{.size = 2 + variant % 2,
                      .any_order = variant % 4 >= 2,
                      .shard = variant % 8 >= 4,
                      .seed = 100 * (static_cast<uint64_t>(variant) / 8)};
    SCOPED_TRACE(std::to_string(world.size) + " ranks, any_order " +
                 std::to_string(world.any_order) + ", shard " + std::to_string(world.shard) +
                 ", seed " + std::to_string(world.seed));
    const auto results = world.Run();
    for (const Trained& result : results) {
      ASSERT_THAT(result.status, IsOk());
      ExpectNear(result.losses, expected.losses, 1e-4);
      ExpectNear(result.weights, expected.weights, 1e-4);
      ExpectNear(result.evaluation, expected.evaluation, 1e-4);
      // Without any exchange of them.
      EXPECT_EQ(result.buffers, results[0].buffers);
      ExpectNear(result.buffers, expected.buffers, 1e-4);
    }
  }
}

// Each rank has up to 3 samples, in parts of 1 and 0.
TEST(Replicas, MicroBatchesGatherInOneOrderOnAllRanks) {
  for (const bool any_order : {false, true}) {
    for (const bool shard : {false, true}) {
      Trained expected;
      for (const uint64_t seed : {0, 100, 200}) {
        const World world{.any_order = any_order, .shard = shard, .micro_batches = 4, .seed = seed};
        for (const Trained& result : world.Run()) {
          ASSERT_THAT(result.status, IsOk());
          if (expected.losses.empty()) expected = result;
          EXPECT_EQ(result.losses, expected.losses);
          EXPECT_EQ(result.weights, expected.weights);
          EXPECT_EQ(result.buffers, expected.buffers) << "without any exchange of them";
        }
      }
    }
  }
}

TEST(Replicas, BuffersOfOneRankAloneAreThoseOfRankZeroWhenShared) {
  const auto results = World{.size = 3, .center = "center_alone"}.Run();
  for (const Trained& result : results) {
    ASSERT_THAT(result.status, IsOk());
    EXPECT_EQ(result.weights, results[0].weights);
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
  Status Step() { return executor->Step(BranchBatch(1, 6, 1, 2).Step(1)).status(); }

  Status status;
};

TEST(Replicas, OpsAreToldWhereTheyAre) {
  Rig rig;
  ASSERT_THAT(rig.Make(Branches(6)), IsOk());
  const StepBatch batch = BranchBatch(1, 6, 0, 1);
  exec::StepInput input = batch.Step(7);
  input.first_sample = 40;
  ASSERT_THAT(rig.Step(input), IsOk());
  ASSERT_THAT(rig.executor->memory().RunForward(), IsOk());
  const graph::Graph& graph = rig.executor->memory().graph();
  for (const char* name : {"first", "a.center"}) {
    const std::vector<OpCall>& calls = CenterNamed(graph, name).forward_calls;
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0].step, 7u);
    EXPECT_EQ(calls[0].first_sample, 40u);
    EXPECT_EQ(calls[0].training, 1u);
    EXPECT_EQ(calls[1].first_sample, 0u);
    EXPECT_EQ(calls[1].training, 0u);
    EXPECT_EQ(graph.nodes[calls[0].node].name, name);
    EXPECT_EQ(calls[1].node, calls[0].node);
  }
}

TEST(Replicas, OnlyOpsThatAskSeeThemAndOnlyWhileTheyTrainOnSeveralRanks) {
  for (const bool asks : {true, false}) {
    for (const int size : {1, 2}) {
      const World world{.size = size, .center = asks ? "center" : "center_alone", .steps = 2};
      for (const Trained& result : world.Run()) {
        const bool sees = asks && size > 1;
        EXPECT_EQ(result.saw_replicas, (std::vector<bool>{sees, sees, false}));
      }
    }
  }
}

TEST(Replicas, WhereNothingMovesARankIsAlone) {
  auto network = std::make_unique<FakeCommunicator>();
  network->described.no_op = 1;
  SingleRank rank(std::move(network));
  ASSERT_THAT(rank.status, IsOk());
  ASSERT_THAT(rank.Step(), IsOk());
  const graph::Graph& graph = rank.executor->memory().graph();
  EXPECT_EQ(CenterNamed(graph, "first").forward_calls[0].replicas, nullptr);
}

TEST(Replicas, AbortEndsARankThatWaitsInAnOp) {
  for (const bool own : {true, false}) {
    Hub hub({.world_size = 2, .match = HubMatch::kKey});
    Hub gathers({.world_size = 2});
    HubCommunicator for_replicas(gathers, 1);
    SingleRank rank(std::make_unique<AnyOrderCommunicator>(hub, 1), own ? &for_replicas : nullptr);
    ASSERT_THAT(rank.status, IsOk());
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Status reason = Status::Error(StatusCode::kPeerLost, "rank 0 is gone").WithRank(0);
      rank.executor->Abort(reason);
      // As whoever owns the communicator does.
      if (!own) hub.Abort(reason);
    });
    const Status status = rank.Step();
    ends.join();
    EXPECT_THAT(status, FailsWith(StatusCode::kPeerLost, HasSubstr("rank 0 is gone")));
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
  const Status status = rank.Step();
  other.join();
  EXPECT_THAT(status, FailsWith(StatusCode::kPeerLost, HasSubstr("lost connection to rank 1")));
}

TEST(Replicas, ARankThatDoesNotComeIsNamedWithTheOp) {
  const auto results = World{.timeout_ms = 200, .absent = 0}.Run();
  EXPECT_EQ(results[1].status.rank(), 0);
  EXPECT_THAT(results[1].status,
              FailsWith(StatusCode::kTimeout, AllOf(HasSubstr("forward of 'first' (center)"),
                                                    HasSubstr("gathering from all ranks"),
                                                    HasSubstr("rank 0 has not submitted"))));
}

TEST(Replicas, ACommunicatorThatCannotGatherIsRefused) {
  Hub hub({.world_size = 2, .match = HubMatch::kKey});
  const SingleRank rank(std::make_unique<AnyOrderCommunicator>(
      hub, 1, Bit(TransferKind::kAllReduce) | Bit(TransferKind::kBroadcast)));
  EXPECT_THAT(rank.status, FailsWith(StatusCode::kConfig, AllOf(HasSubstr("layer 'first' (center)"),
                                                                HasSubstr("cannot gather"))));
}

TEST(Replicas, KeysAreThoseOfTaskAndCallAndTheSameInEachStep) {
  FakeCommunicator network(3);
  const auto keys = [&](int32_t rank, uint64_t plan) {
    network.submitted.clear();
    exec::Submitter submitter(network, "fake", nullptr);
    exec::CommunicatorReplicas replicas(submitter, /*queues=*/false,
                                        {.rank = rank, .world_size = 3}, plan, 1000);
    std::vector<float> all(3);
    for (const uint32_t task : {4, 7, 4}) {
      replicas.Begin(task);
      for (int call = 0; call < 2; ++call) {
        EXPECT_THAT(replicas.Gather(&all[static_cast<size_t>(rank)], 1, all.data(), nullptr),
                    IsOk());
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
  EXPECT_EQ(first[4], first[0]);
  EXPECT_EQ(first[5], first[1]);
  const std::set<uint64_t> distinct(first.begin(), first.end());
  EXPECT_EQ(distinct.size(), 4u);
  EXPECT_THAT(distinct, Each(::testing::Ne(0u)));
}

// A prefix of frozen layers that also fits a buffer changes nothing for it.
TEST(Buffers, LieBehindAllParametersAndFollowTheirOpsInFrozenLayersToo) {
  Rig rig;
  ASSERT_THAT(rig.Make(Branches(6, "center_alone", {"a."})), IsOk());
  EXPECT_EQ(rig.executor->unreached_parameters(), std::vector<std::string>{"dead.scale.weight"});
  ASSERT_THAT(rig.Step(BranchBatch(1, 6, 0, 1).Step(1)), IsOk());
  const exec::ModelMemory& memory = rig.executor->memory();
  const exec::FlatLayout& layout = memory.layout();
  for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
    const graph::Parameter& parameter = memory.graph().parameters[p];
    SCOPED_TRACE(parameter.name);
    EXPECT_EQ(parameter.buffer, layout.offset[p] >= layout.buffer_begin);
    EXPECT_LE(layout.offset[p] + parameter.shape.Count(),
              parameter.buffer ? layout.total_count : layout.buffer_begin);
    if (!parameter.buffer) continue;
    const float* const values = memory.parameter(static_cast<int32_t>(p)).f32();
    EXPECT_NE(std::vector<float>(values, values + kWidth), std::vector<float>(kWidth, 0));
  }
}

}  // namespace
}  // namespace engine::test
