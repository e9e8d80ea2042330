// What each scheduler of this repository makes travel together.
#include <gtest/gtest.h>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

using testing::SizeIs;
using Sizes = std::vector<int64_t>;

using Buckets = std::vector<exec::BucketLayout>;

// The parameters of a chain of layers, in ready order: the last layer first.
std::vector<ParameterInfo> ChainOf(const Sizes& sizes_bytes) {
  std::vector<ParameterInfo> parameters;
  for (int64_t size_bytes : sizes_bytes) {
    const auto id = static_cast<uint32_t>(parameters.size());
    const auto first_use = static_cast<uint32_t>(sizes_bytes.size()) - 1 - id;
    parameters.push_back({.id = id, .first_use = first_use, .ready = id, .count = size_bytes / 4});
  }
  return parameters;
}

ModelInfo InfoOf(const std::vector<ParameterInfo>& parameters) {
  ModelInfo info{.parameters = parameters, .world_size = 2, .slice_multiple = 16};
  info.communicator.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
                            Bit(TransferKind::kAllGather);
  return info;
}

Buckets Plan(const std::string& name, const OptionValues::Overrides& options,
             const ModelInfo& info) {
  return Must(LayoutOf(info, *CreateFrom<Scheduler>(PluginPath(name), options))).buckets;
}

Buckets Plan(const std::string& name, const OptionValues::Overrides& options,
             const Sizes& sizes_bytes) {
  const auto parameters = ChainOf(sizes_bytes);
  return Plan(name, options, InfoOf(parameters));
}

std::vector<std::vector<uint32_t>> Parameters(const Buckets& buckets) {
  std::vector<std::vector<uint32_t>> parameters;
  for (const exec::BucketLayout& bucket : buckets) {
    parameters.emplace_back();
    for (const BucketSpan& span : bucket.spans) parameters.back().push_back(span.parameter);
  }
  return parameters;
}

// Without what the engine adds between tensors.
uint64_t Bytes(const exec::BucketLayout& bucket) {
  int64_t elements = 0;
  for (const BucketSpan& span : bucket.spans) elements += span.count;
  return static_cast<uint64_t>(elements) * sizeof(float);
}

std::vector<uint64_t> Bytes(const Buckets& buckets) {
  std::vector<uint64_t> bytes;
  for (const exec::BucketLayout& bucket : buckets) bytes.push_back(Bytes(bucket));
  return bytes;
}

TEST(Fusion, JoinsGradientsUntilABucketIsBigEnough) {
  for (const char* name : {"fifo_sched", "priority_sched"}) {
    EXPECT_THAT(
        Parameters(
            Plan(name, {{"fuse_bytes", "1000"}}, Sizes{400, 400, 400, 4, 5000, 996, 4, 5000})),
        ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4), ElementsAre(5, 6), ElementsAre(7)));
    EXPECT_THAT(Parameters(Plan(name, {{"fuse_bytes", "0"}}, Sizes{4, 4000, 4})),
                ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  }
}

TEST(SequentialSched, SendsInLargeBuckets) {
  EXPECT_THAT(Bytes(Plan("sequential_sched", {}, Sizes(3000, 4096))),
              ElementsAre(4 << 20, 4 << 20, 3000 * 4096 - (8 << 20)));
}

TEST(FifoSched, BeginsWithASmallBucket) {
  const auto bytes = [](const char* fuse_bytes) {
    const OptionValues::Overrides options = {{"first_bytes", "800"}, {"fuse_bytes", fuse_bytes}};
    return Bytes(Plan("fifo_sched", options, Sizes(9, 400)));
  };
  EXPECT_THAT(bytes("1600"), ElementsAre(800, 1600, 1200));
  EXPECT_THAT(bytes("0"), SizeIs(9));
}

TEST(FifoSched, CutsLargeGradientsOnlyIfAsked) {
  const Sizes sizes = {64000, 12800};
  EXPECT_THAT(Bytes(Plan("fifo_sched", {{"fuse_bytes", "6400"}}, sizes)),
              ElementsAre(64000, 12800));
  EXPECT_THAT(Bytes(Plan("fifo_sched", {{"fuse_bytes", "6400"}, {"slice_bytes", "25600"}}, sizes)),
              ElementsAre(21376, 21312, 21312, 12800));  // multiples of 64 bytes
}

TEST(PrioritySched, GivesTheBucketsThatAreNeededFirstTheLargestPriority) {
  const auto buckets = Plan("priority_sched", {{"fuse_bytes", "0"}}, Sizes(3, 4000));
  ASSERT_THAT(buckets, SizeIs(3));
  EXPECT_LT(buckets[0].priority, buckets[1].priority);
  EXPECT_LT(buckets[1].priority, buckets[2].priority);
}

// The gradient that is ready last and needed first must not wait for others to be sent.
TEST(PrioritySched, KeepsWhatIsNeededFirstApart) {
  auto parameters = ChainOf({400, 400, 400, 400, 400});
  parameters[3].first_use = parameters[4].first_use;  // a weight and its bias
  EXPECT_THAT(Parameters(Plan("priority_sched", {}, InfoOf(parameters))),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4)));
}

TEST(PrioritySched, JoinsWhatIsReadyBeforeALargeGradientWithItsFirstSlice) {
  const auto buckets = Plan("priority_sched", {{"slice_bytes", "25600"}, {"fuse_bytes", "6400"}},
                            Sizes{400, 64000, 400, 400});
  EXPECT_THAT(Parameters(buckets), ElementsAre(ElementsAre(0, 1), ElementsAre(1), ElementsAre(1),
                                               ElementsAre(2), ElementsAre(3)));
}

TEST(PrioritySched, HasOnePriorityWhenUpdatesWaitForAllGradients) {
  const auto parameters = ChainOf({4000, 4000, 4000});
  ModelInfo info = InfoOf(parameters);
  info.gate = UpdateGate::kGlobal;
  for (const exec::BucketLayout& bucket : Plan("priority_sched", {}, info))
    EXPECT_EQ(bucket.priority, 0);
}

// What is configured stays.
TEST(Accelerators, GetLargeBucketsByDefault) {
  constexpr int64_t kMiB = 1 << 20;
  const auto parameters = ChainOf(Sizes(60, 3 * kMiB));
  ModelInfo info = InfoOf(parameters);
  struct Case {
    const char* scheduler;
    OptionValues::Overrides options;
    size_t on_host, on_accelerator;
  };
  const Case cases[] = {
      {"fifo_sched", {}, 31, 7},          // the first one is small
      {"priority_sched", {}, 60 * 3, 7},  // what is needed first is alone
      {"dear_sched", {}, 30, 6},
      {"sequential_sched", {}, 30, 6},
      {"fifo_sched", {{"fuse_bytes", "12582912"}}, 16, 16},
      {"priority_sched", {{"slice_bytes", "1048576"}, {"fuse_bytes", "0"}}, 180, 180},
      {"dear_sched", {{"group_bytes", "6291456"}}, 30, 30},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.scheduler);
    info.accelerator = 0;
    EXPECT_THAT(Plan(one.scheduler, one.options, info), SizeIs(one.on_host));
    info.accelerator = 1;
    EXPECT_THAT(Plan(one.scheduler, one.options, info), SizeIs(one.on_accelerator));
  }
  info.accelerator = 0;
  MemoryHost apart({.world_size = 2, .local_world_size = 1, .one_host = 0});
  const auto priority = CreateFrom<Scheduler>(PluginPath("priority_sched"), {}, &apart);
  EXPECT_THAT(Must(LayoutOf(info, *priority)).buckets, SizeIs(60 * 12));  // over a network
}

TEST(DearSched, SplitsEveryGroupIntoTwoStages) {
  const auto buckets =
      Plan("dear_sched", {{"group_bytes", "8000"}}, Sizes{4000, 4000, 4000, 9000, 400});
  EXPECT_THAT(Parameters(buckets),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  for (const exec::BucketLayout& bucket : buckets) {
    EXPECT_EQ(bucket.stages, BucketStages::kReduceScatterAllGather);
  }
}

TEST(DearSched, RefusesACommunicatorWithoutTheTwoStages) {
  const auto parameters = ChainOf({4000});
  ModelInfo info = InfoOf(parameters);
  info.communicator.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter);
  const Status status = LayoutOf(info, *CreateFrom<Scheduler>(PluginPath("dear_sched"))).status();
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_THAT(status.message(), HasSubstr("choose another communicator"));
}

TEST(Plans, HoldTheirLimitsForRandomModels) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const ModelSketch model = ModelSketch::Random(random);
    StepGraph graph(model);
    const ModelInfo info = graph.model_info();
    const int64_t slice_bytes = int64_t{256} << random() % 12;
    const int64_t fuse_bytes = int64_t{64} << random() % 12;
    uint64_t total = 0, sent = 0;
    for (int64_t count : model.parameter_counts) total += static_cast<uint64_t>(count) * 4;
    const auto least = static_cast<uint64_t>(info.slice_multiple) * 4;
    for (const char* name : {"fifo_sched", "priority_sched"}) {
      const auto buckets = Plan(name,
                                {{"slice_bytes", std::to_string(slice_bytes)},
                                 {"fuse_bytes", std::to_string(fuse_bytes)}},
                                info);
      sent = 0;
      for (const exec::BucketLayout& bucket : buckets) {
        sent += Bytes(bucket);
        if (info.parameters[bucket.spans[0].parameter].alone != 0) continue;  // never cut
        ASSERT_LE(Bytes(bucket), std::max(least, static_cast<uint64_t>(slice_bytes))) << name;
      }
      ASSERT_LE(sent, total);  // a parameter that no layer uses is not sent
      // Cutting is no reason for crumbs: at most twice the buckets that the bytes make necessary.
      const size_t needed = sent / std::max<uint64_t>(least, static_cast<uint64_t>(slice_bytes));
      ASSERT_LE(buckets.size(), 2 * needed + info.parameters.size()) << name;
    }
  }
}

TEST(GlobalGate, IsSaidOnceByRank0WhereItCosts) {
  const auto parameters = ChainOf({4000, 4000});
  ModelInfo waits = InfoOf(parameters);
  waits.gate = UpdateGate::kGlobal;
  ModelInfo tensor = waits, sharded = waits, alone = waits, served = waits;
  tensor.gate = UpdateGate::kTensor;
  sharded.sharded = served.served = 1;
  alone.world_size = 1;
  for (const char* name : {"priority_sched", "dear_sched"}) {
    const auto said = [&](int32_t rank, const ModelInfo& info) {
      MemoryHost host({.rank = rank, .world_size = 2});
      Must(LayoutOf(info, *CreateFrom<Scheduler>(PluginPath(name), {}, &host)));
      return host.log();
    };
    EXPECT_THAT(said(0, waits),
                ElementsAre(testing::AllOf(HasSubstr("updates wait for all gradients"),
                                           HasSubstr("train.shard_optimizer"))));
    EXPECT_THAT(said(1, waits), IsEmpty());
    for (const ModelInfo& info : {tensor, sharded, alone, served}) {
      EXPECT_THAT(said(0, info), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace engine::test
