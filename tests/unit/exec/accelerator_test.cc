// The executor on accelerators: what it trains there is what it trains in host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "app/plugins/loss_scaler.h"
#include "core/plugin/create_object.h"
#include "tests/unit/exec/async_world.h"

namespace engine::test {
namespace {

void ExpectNear(const std::vector<AsyncOutcome>& made, const std::vector<AsyncOutcome>& wanted) {
  ASSERT_EQ(made.size(), wanted.size());
  for (size_t r = 0; r < made.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_THAT(wanted[r].status, IsOk());
    ASSERT_THAT(made[r].status, IsOk());
    EXPECT_EQ(made[r].too_early, 0);
    test::ExpectNear(made[r].parameters, wanted[r].parameters, 2e-5);
    test::ExpectNear(made[r].losses, wanted[r].losses, 1e-4);
  }
}

// Flushes, a smaller batch, and one of no samples.
std::vector<AsyncStep> UnevenSteps() {
  return {{}, {.empty_rank = 1}, {.samples = 2}, {.flush = true}, {}, {.samples = 0}, {}};
}

struct Case {
  const char* what;
  AsyncWorld world;
};

std::vector<Case> Cases() {
  const auto steps = UnevenSteps();
  const char *fifo = "fifo_sched", *priority = "priority_sched";
  return {
      {"one rank", {.steps = steps}},
      {"one rank, other delays", {.seed = 2, .steps = steps}},
      {"two ranks", {.size = 2, .scheduler = fifo, .steps = steps}},
      {"two ranks, by priority", {.size = 2, .scheduler = priority, .steps = steps}},
      {"three ranks", {.size = 3, .scheduler = fifo, .steps = steps}},
      {"three ranks, by priority", {.size = 3, .scheduler = priority, .steps = steps}},
      {"two ranks, sharded", {.size = 2, .shard = true, .scheduler = priority, .steps = steps}},
      {"three ranks, sharded", {.size = 3, .shard = true, .scheduler = priority, .steps = steps}},
      {"two micro-batches", {.micro_batches = 2, .steps = steps}},
      {"four micro-batches", {.micro_batches = 4, .steps = steps}},
      {"two ranks, two micro-batches", {.size = 2, .micro_batches = 2, .steps = steps}},
      {"slices", {.size = 2, .slice_bytes = "128", .scheduler = priority}},
      {"slices, sharded", {.size = 2, .shard = true, .slice_bytes = "128", .scheduler = priority}},
      {"recomputed", {.size = 2, .shard = true, .recompute = {"noise", "a", "b"}, .steps = steps}},
      {"frozen and scaled", {.size = 2, .loss_scale = 8, .frozen = {"c.", "first."}}},
      {"gathers", {.size = 2, .gathers = true, .scheduler = fifo, .steps = steps}},
      {"gathers, by priority", {.size = 2, .gathers = true, .scheduler = priority, .steps = steps}},
      {"gathers of three", {.size = 3, .gathers = true, .scheduler = fifo, .steps = steps}},
      {"gathers of three, by priority",
       {.size = 3, .gathers = true, .scheduler = priority, .steps = steps}},
  };
}

TEST(AcceleratorTest, TrainsToTheBitsOfHostDevices) {
  for (const auto& [what, world] : Cases()) {
    SCOPED_TRACE(what);
    ExpectSameBits(world.Run(), world.RunOnHost());
  }
}

TEST(AcceleratorTest, AdamWTrainsNearlyAsOnAHostDevice) {
  AsyncWorld world{.size = 2, .optimizer = "adamw", .optimizer_options = {}};
  ExpectNear(world.Run(), world.RunOnHost());
}

TEST(AcceleratorTest, HooksClipAsOnAHostDevice) {
  const std::pair<std::string, OptionValues::Overrides> norm = {"clip_norm",
                                                                {{"max_norm", "0.05"}}};
  const std::pair<std::string, OptionValues::Overrides> value = {"clip_value",
                                                                 {{"threshold", "0.002"}}};
  for (const int size : {1, 2}) {
    for (const bool shard : {false, true}) {
      if (shard && size == 1) continue;
      AsyncWorld plain{.size = size, .shard = shard};
      const auto unclipped = plain.RunOnHost();
      for (const auto& hooks : {std::vector{norm}, std::vector{value}, std::vector{value, norm}}) {
        SCOPED_TRACE(std::to_string(size) + " ranks, " + hooks[0].first);
        AsyncWorld world = plain;
        world.hooks = hooks;
        const auto wanted = world.RunOnHost();
        ExpectNear(world.Run(), wanted);
        EXPECT_NE(wanted[0].parameters, unclipped[0].parameters) << "nothing was clipped";
      }
    }
  }
}

// The first scale is too large for float32, and so is the one that it grows to.
TEST(AcceleratorTest, ALossScaleMovesAsOnAHostDevice) {
  const plugin::PluginChoice scaler = plugins::LossScalerOf(
      {.first = 0x1p127, .growth_factor = 0x1p20, .backoff_factor = 0x1p-20, .growth_interval = 2});
  const AsyncWorld worlds[] = {{.size = 2, .shard = true}, {.micro_batches = 2}};
  for (AsyncWorld world : worlds) {
    const auto plain = world.RunOnHost();
    world.first_hook = [&](Host& host) { return Must(plugin::Create<GradientHook>(scaler, host)); };
    const auto moved = world.Run();
    ExpectSameBits(moved, world.RunOnHost());
    EXPECT_NE(moved[0].parameters, plain[0].parameters) << "no step was skipped";
    world.hooks = {{"clip_norm", {{"max_norm", "0.05"}}}};
    world.optimizer = "adamw";
    world.optimizer_options = {};
    ExpectNear(world.Run(), world.RunOnHost());
  }
}

TEST(AcceleratorTest, GradientsTravelAsBFloat16ToTheBitsOfHostDevices) {
  for (const bool shard : {false, true}) {
    for (const char* scheduler : {"fifo_sched", "priority_sched", "dear_sched"}) {
      SCOPED_TRACE(std::string(scheduler) + (shard ? ", sharded" : ""));
      AsyncWorld world{.size = 3, .shard = shard, .scheduler = scheduler, .steps = UnevenSteps()};
      const auto as_float32 = world.Run();
      world.hooks = {{"cast_bf16", {}}};
      const auto made = world.Run();
      ExpectSameBits(made, world.RunOnHost());
      EXPECT_NE(made[0].parameters, as_float32[0].parameters) << "nothing was rounded";
    }
  }
}

// The scale is in the memory of the device, and of the step that packs; also in a recording.
TEST(AcceleratorTest, StatesOfAWireFormatAreInTheUnitOfTheMean) {
  for (const bool record : {false, true}) {
    for (const char* scheduler : {"fifo_sched", "priority_sched"}) {
      SCOPED_TRACE(std::string(scheduler) + (record ? ", recorded" : ""));
      AsyncWorld world{.size = 3, .record = record, .scheduler = scheduler};
      world.hooks = {{"half_sender", {}}, {"clip_value", {{"threshold", "0.1"}}}};
      world.steps = UnevenSteps();
      world.steps.insert(world.steps.end(), {{}, {.samples = 1}, {}, {.flush = true}, {}});
      ExpectSameBits(world.Run(), world.RunOnHost());
    }
  }
}

// Of two parameters ops read rounded copies: those travel, and the float32 values only before
// somebody looks at them. All are of 48 elements, padded to 64 for two ranks.
TEST(AcceleratorTest, ShardedParametersThatAreReadRoundedAreGatheredSo) {
  for (const char* fuse_bytes : {"0", "1000000"}) {
    SCOPED_TRACE(fuse_bytes);
    std::mutex mutex;
    std::map<DType, int64_t> gathered;  // bytes, by rank 0
    uint64_t announced = 0;             // in a step
    AsyncWorld world{.size = 2, .shard = true, .fuse_bytes = fuse_bytes};
    const AsyncWorld training = world;
    world.on_submit = [&](const AsyncRank& self, const Transfer& transfer) {
      const std::lock_guard lock(mutex);
      if (self.rank != 0 || transfer.kind != TransferKind::kAllGather) return;
      gathered[transfer.dtype] += 2 * transfer.count * static_cast<int64_t>(SizeOf(transfer.dtype));
    };
    world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
      ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor, 3));
      EXPECT_FALSE(executor.flushed());
      ENGINE_RETURN_IF_ERROR(executor.Flush());
      EXPECT_TRUE(executor.flushed());
      const std::lock_guard lock(mutex);
      announced = 0;
      for (const TaskInfo& task : executor.tasks().infos) {
        if (task.transfer == TransferKind::kAllGather) announced += task.size_bytes;
      }
      return {};
    };
    ExpectOk(world.Run());
    // Tensors of 48 elements, in buckets that are padded to 32 at their ends: each alone, or two and
    // three together and the one between them.
    const bool fused = std::string_view(fuse_bytes) != "0";
    const int64_t rounded = fused ? 96 : 2 * 64, whole = fused ? 64 + 160 : 4 * 64;
    EXPECT_EQ(gathered[DType::kBFloat16], 3 * rounded * 2);
    EXPECT_EQ(gathered[DType::kFloat32], 3 * whole * 4 + rounded * 4);
    EXPECT_EQ(announced, rounded * 2 + whole * 4);
    const auto made = training.Run();
    ExpectSameBits(made, training.RunOnHost());
    AsyncWorld unsharded_world = training;
    unsharded_world.shard = false;
    const auto unsharded = unsharded_world.Run();
    for (size_t r = 0; r < made.size(); ++r) {
      EXPECT_EQ(made[r].losses, unsharded[r].losses);
      EXPECT_EQ(made[r].parameters, unsharded[r].parameters);
    }
  }
}

// Everything in one bucket, but for what must be alone.
class MixingScheduler final : public RandomScheduler {
 public:
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    std::vector<BucketSpan> mixed;
    for (const ParameterInfo& parameter : model.parameters) {
      const BucketSpan span{.parameter = parameter.id, .count = parameter.count};
      if (parameter.alone != 0) sink.AddBucket({&span, 1}, 0, stages);
      if (parameter.alone == 0) mixed.push_back(span);
    }
    sink.AddBucket(mixed, 0, stages);
    return {};
  }
};

TEST(AcceleratorTest, BucketsAreGatheredAsTheirParametersAreRead) {
  AsyncAccelerator device;
  const AsyncWorld world;
  graph::Graph graph = world.Model(world.Ops({.device = &device}, nullptr));
  const std::vector<ParameterInfo> parameters =
      exec::DescribeParameters(graph, graph::Differentiate(graph));
  ModelInfo model{.parameters = parameters,
                  .world_size = 2,
                  .slice_multiple = exec::SliceMultiple(2),
                  .sharded = 1};
  const auto plan = [&](Scheduler&& scheduler) {
    return exec::MakeLayout(graph, model, scheduler, "test_sched");
  };
  const auto gathered = [&] {
    std::vector<DType> types;
    const exec::FlatLayout layout = ValueOf(plan(RandomScheduler()));
    for (const exec::BucketLayout& bucket : layout.buckets) types.push_back(bucket.gathered);
    return types;
  };
  const DType as_it_is = DType::kFloat32, rounded = DType::kBFloat16;
  EXPECT_THAT(plan(RandomScheduler()),
              FailsWith(StatusCode::kConfig, HasSubstr("train.shard_optimizer gathers")));
  model.communicator.dtypes = Bit(as_it_is) | Bit(rounded);
  EXPECT_THAT(gathered(), ElementsAre(rounded, rounded, as_it_is, as_it_is, as_it_is, as_it_is));
  EXPECT_THAT(plan(MixingScheduler()),
              FailsWith(StatusCode::kPlugin, HasSubstr("into one bucket with others")));
  model.sharded = 0;
  EXPECT_THAT(gathered(), Each(as_it_is)) << "nothing is gathered";
}

// One for each bucket on its way there, and one on its way back.
TEST(AcceleratorTest, GradientsThatTravelTogetherAreCastTogether) {
  for (const bool fuses : {false, true}) {
    AsyncWorld world{.size = 2, .fuse_bytes = fuses ? "1000000" : "0"};
    const int before = world.Run()[0].conversions;
    world.hooks = {{"cast_bf16", {}}};
    const auto made = world.Run();
    ASSERT_THAT(made[0].status, IsOk());
    const auto buckets = fuses ? 1 : 6;
    EXPECT_EQ(made[0].conversions - before, 2 * buckets * static_cast<int>(world.steps.size()));
  }
}

// Where threads tell each other what they have done. Counts the waits that nobody has ended.
class Handshake {
 public:
  void Tell(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  void WaitFor(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(10), condition)) ++in_vain_;
  }
  int in_vain() const { return in_vain_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int in_vain_ = 0;
};

// The host queues a step for a device that does nothing, and no parameter changes before gradients
// of the other rank are there.
TEST(AcceleratorTest, TheHostDoesNotWaitAndUpdatesWaitForTransfers) {
  for (const bool shard : {false, true}) {
    AsyncWorld world{.size = 2, .shard = shard, .steps = std::vector<AsyncStep>(1)};
    Handshake handshake;
    bool queued = false, looked = false;
    std::vector<float> before, after;
    world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
      const auto read = [&](std::vector<float>* to) {
        const exec::ModelMemory& memory = executor.memory();
        to->resize(static_cast<size_t>(memory.layout().trainable_count));
        return memory.ReadFloats({.data = memory.parameters(),
                                  .shape = {memory.layout().trainable_count},
                                  .dtype = DType::kFloat32},
                                 to->data());
      };
      if (self.rank == 0) ENGINE_RETURN_IF_ERROR(read(&before));
      if (self.rank == 1) self.device->Stop();
      ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor));
      if (self.rank == 0) {
        // Behind the backward pass.
        handshake.WaitFor([&] { return queued; });
        ENGINE_RETURN_IF_ERROR(read(&after));
        handshake.Tell([&] { looked = true; });
      } else {
        handshake.Tell([&] { queued = true; });
        handshake.WaitFor([&] { return looked; });
      }
      self.device->Resume();
      return executor.Flush();
    };
    ExpectOk(world.Run());
    EXPECT_EQ(handshake.in_vain(), 0);
    EXPECT_FALSE(before.empty());
    EXPECT_EQ(before, after);
  }
}

// The first layer's gradient of one rank waits for the other to have begun the next step.
TEST(AcceleratorTest, TheNextStepBeginsBeforeTheTransfersOfThisOneHaveEnded) {
  Handshake handshake;
  int begun = 0, step = 0;
  AsyncWorld world{.size = 2, .steps = std::vector<AsyncStep>(3)};
  world.before_call = [&](const AsyncRank& self, const std::string& op, bool backward) {
    if (self.rank == 0 && op == "noise" && !backward) handshake.Tell([&] { ++begun; });
    if (self.rank == 0 || op != "scale_first" || !backward || ++step == 3) return;
    handshake.WaitFor([&] { return begun > step; });
  };
  ExpectSameBits(world.Run(), world.RunOnHost());
  EXPECT_EQ(handshake.in_vain(), 0);
}

// The device computes the first layer's gradient, the last of a backward pass, only when the
// gradient of another layer was submitted.
TEST(AcceleratorTest, TransfersBeginBeforeTheDeviceHasEndedTheBackwardPass) {
  for (const char* scheduler : {"fifo_sched", "priority_sched"}) {
    Handshake handshake;
    int submitted[2] = {};
    AsyncWorld world{.size = 2, .scheduler = scheduler, .steps = std::vector<AsyncStep>(1)};
    world.on_submit = [&](const AsyncRank& self, const Transfer& transfer) {
      if (transfer.bucket != UINT32_MAX) handshake.Tell([&] { ++submitted[self.rank]; });
    };
    world.before_call = [&](const AsyncRank& self, const std::string& op, bool backward) {
      if (op != "scale_first" || !backward) return;
      handshake.WaitFor([&] { return submitted[self.rank] > 0; });
    };
    ExpectSameBits(world.Run(), world.RunOnHost());
    EXPECT_EQ(handshake.in_vain(), 0) << scheduler;
  }
}

TEST(AcceleratorTest, AllRanksHearOfARequestToStopInTheSameStep) {
  AsyncWorld world{.size = 3};
  world.steps[3].stop_rank = 2;
  for (const AsyncOutcome& outcome : world.Run()) {
    ASSERT_THAT(outcome.status, IsOk());
    EXPECT_THAT(outcome.stops, ElementsAre(0, 0, 0, 1, 0, 0));
  }
  AsyncWorld alone;
  alone.steps[3].stop_rank = 0;
  EXPECT_THAT(alone.Run()[0].stops, ElementsAre(0, 0, 0, 1, 0, 0));
}

// Full and smaller batches, and flushes before, at, and after the step that is recorded (the
// fourth).
TEST(AcceleratorTest, RecordedStepsGiveTheBitsOfOtherOnes) {
  const AsyncStep full{}, small{.samples = 2}, flushed{.flush = true};
  const std::vector<std::vector<AsyncStep>> plans = {
      {full, full, full, full, full, full, full, full},
      {full, full, full, full, full, small, full, full, small},
      {full, full, flushed, full, full, full, full},
      {full, full, full, flushed, full, full, full},
      {full, full, full, full, flushed, full, full, flushed, full, full},
      {full, full, small, small, full, full, flushed, small, full, full}};
  for (const char* scheduler : {"fifo_sched", "priority_sched", "sequential_sched"}) {
    for (size_t i = 0; i < plans.size(); ++i) {
      for (const int size : {1, 2, 3}) {
        SCOPED_TRACE(std::string(scheduler) + ", plan " + std::to_string(i) + ", " +
                     std::to_string(size) + " ranks");
        AsyncWorld world{.size = size,
                         .max_delay_us = 0,
                         .shard = size == 3,
                         .record = true,
                         .scheduler = scheduler,
                         .steps = plans[i]};
        const auto made = world.Run();
        ExpectSameBits(made, world.RunOnHost());
        for (const AsyncOutcome& outcome : made) EXPECT_GT(outcome.launches, 1);
      }
    }
  }
}

// Ranks whose shares differ record and replay in the same steps.
TEST(AcceleratorTest, RecordedStepsOfRanksWithFewerSamples) {
  AsyncWorld world{.size = 2, .record = true};
  world.steps.assign(7, {.empty_rank = 1});
  const auto made = world.Run();
  ExpectSameBits(made, world.RunOnHost());
  EXPECT_EQ(made[0].launches, made[1].launches);
  EXPECT_GT(made[1].launches, 1);
}

// Nobody would hear of a gather that failed in a replay, and nothing would order the transfers of
// the two communicators alike on all ranks.
TEST(AcceleratorTest, StepsInWhichOpsSeeAllRanksAreNotRecorded) {
  for (const AsyncOutcome& outcome : AsyncWorld{.size = 2, .record = true, .gathers = true}.Run()) {
    EXPECT_THAT(outcome.status,
                FailsWith(StatusCode::kConfig, HasSubstr("see the batch of all ranks")));
  }
}

TEST(AcceleratorTest, RecordedStepsClipAndAdapt) {
  AsyncWorld world{.record = true,
                   .optimizer = "adamw",
                   .optimizer_options = {},
                   .hooks = {{"clip_norm", {{"max_norm", "0.05"}}}},
                   .steps = std::vector<AsyncStep>(10)};
  world.steps[6].flush = true;
  const auto recorded = world.Run();
  EXPECT_GT(recorded[0].launches, 1);
  world.record = false;
  ExpectSameBits(recorded, world.Run());
  ExpectNear(recorded, world.RunOnHost());
}

TEST(AcceleratorTest, LossMayWriteItsGradientOverItsInput) {
  for (const bool record : {false, true}) {
    AsyncWorld world{.record = record};
    const auto wanted = world.RunOnHost();
    world.loss = "loss_in_place";
    const auto made = world.Run();
    ExpectSameBits(made, wanted);
    EXPECT_EQ(made[0].in_place, 6);
  }
}

TEST(AcceleratorTest, RoundedCopiesFollowParametersThatAreWrittenFromOutside) {
  AsyncWorld world;
  world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
    exec::ModelMemory& memory = executor.memory();
    const auto logit = [&](float weight) -> Result<float> {
      const std::vector<float> values(static_cast<size_t>(memory.layout().total_count), weight);
      ENGINE_RETURN_IF_ERROR(self.device->Copy(memory.parameters(), values.data(),
                                               values.size() * sizeof(float), memory.stream()));
      ENGINE_RETURN_IF_ERROR(memory.RefreshCopies());
      const AsyncWorld::Batch batch = world.MakeBatch(0, 1, {});
      ENGINE_RETURN_IF_ERROR(memory.SetScalars({}));
      ENGINE_RETURN_IF_ERROR(
          memory.SetBatch(batch.input.data(), batch.target.data(), kAsyncSamples));
      ENGINE_RETURN_IF_ERROR(memory.RunForward());
      std::vector<float> logits(static_cast<size_t>(memory.logits().count()));
      ENGINE_RETURN_IF_ERROR(memory.ReadFloats(memory.logits(), logits.data()));
      // Two layers read w rounded, two others, and two shifts, w itself.
      const float x = batch.input[0], w = weight, rounded = FromBFloat16(ToBFloat16(w));
      const float h = x * w + x * w * w;
      EXPECT_FLOAT_EQ(logits[0], (h + (h * rounded + w)) * rounded + w);
      return logits[0];
    };
    ENGINE_ASSIGN_OR_RETURN(const float first, logit(1.001f));
    ENGINE_ASSIGN_OR_RETURN(const float second, logit(1.017f));
    EXPECT_NE(first, second);
    return {};
  };
  ExpectOk(world.Run());
}

TEST(AcceleratorTest, AllReduceOfHostMemoryGoesThroughTheDevice) {
  AsyncWorld world{.size = 3};
  world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
    ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor));
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    float numbers[2] = {1.0f + static_cast<float>(self.rank), 0.5f};
    ENGINE_RETURN_IF_ERROR(executor.AllReduce(numbers));
    EXPECT_EQ(numbers[0], 6);
    EXPECT_EQ(numbers[1], 1.5f);
    return {};
  };
  ExpectOk(world.Run());
}

}  // namespace
}  // namespace engine::test
