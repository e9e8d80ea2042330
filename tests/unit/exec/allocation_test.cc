// The step path allocates nothing after the first step. In a binary of its own, because it replaces
// operator new.
#include <gtest/gtest.h>

#include "tests/fakes/allocation_count.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

void ExpectNoAllocations(int64_t micro_batches) {
  const char* const op = micro_batches == 1 ? "scale_slow" : "scale";
  GraphBuilder builder(FakeOps(), 4);
  const ValueId x = builder.Input("x", {3}, DType::kFloat32);
  ValueId h = *builder.Apply("stem", "scale", {x});
  for (int i = 0; i < 4; ++i) {
    const std::string name = "block" + std::to_string(i);
    h = *builder.Apply(name + ".add", "add", {h, *builder.Apply(name, op, {h})});
  }
  const ValueId target = builder.Input("target", {3}, DType::kInt32);
  const ValueId loss = *builder.Apply("loss", "loss", {h, target});
  Rig rig;
  rig.micro_batches = micro_batches;
  ASSERT_TRUE(rig.Make(*builder.Finish(x, target, h, loss, {}), std::make_unique<RandomScheduler>(),
                       std::make_unique<FakeCommunicator>())
                  .ok());
  rig.communicator->submitted.reserve(1000);
  const float input[12] = {1, 2, 3};
  const int32_t targets[12] = {1, 0, 2};
  StepInput step{.input = input, .target = targets, .samples = 4, .step = 1, .learning_rate = 0.1f};
  ASSERT_TRUE(rig.executor->Step(step).ok());
  for (int64_t samples : {4, 4, 2, 0, 4}) {
    rig.scheduler->order.clear();
    ++step.step;
    step.samples = samples;
    const AllocationCounter counter;
    const bool ok = rig.executor->Step(step).ok();
    const uint64_t allocations = counter.count();
    ASSERT_TRUE(ok);
    EXPECT_EQ(allocations, 0u) << "step " << step.step;
  }
}

TEST(AllocationTest, StepsAfterTheFirstAllocateNothing) {
  ExpectNoAllocations(1);
}

TEST(AllocationTest, MicroBatchesAllocateNothing) {
  ExpectNoAllocations(3);
}

TEST(AllocationTest, GathersAllocateNothing) {
  FakeCommunicator network(2);
  network.submitted.reserve(100);
  HostDevice device;
  CommunicatorReplicas replicas(network, device, {.rank = 1, .world_size = 2}, 1, 1000);
  float all[2] = {};
  const AllocationCounter counter;
  bool ok = true;
  for (uint32_t task = 0; task < 10; ++task) {
    replicas.Begin(task);
    ok = replicas.Gather(&all[1], 1, all, nullptr).ok() && ok;
  }
  const uint64_t allocations = counter.count();
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations, 0u);
}

}  // namespace
}  // namespace engine::test
