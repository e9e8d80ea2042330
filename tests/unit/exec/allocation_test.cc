// The step path allocates nothing after the first step. In a binary of its own, because it replaces
// operator new.
#include <gtest/gtest.h>

#include "tests/unit/exec/prompt_accelerator.h"
#include "tests/unit/exec/rig.h"
#include "tools/conform/allocation_count.h"

namespace engine::test {
namespace {

void ExpectNoAllocations(int64_t micro_batches, Device* device = nullptr, int ranks = 1) {
  const char* const op = micro_batches == 1 ? "scale_slow" : "scale";
  Net net(FakeOps(), 4, {3});
  ModelValue h = net.Apply("stem", "scale", {Net::kX});
  for (int i = 0; i < 4; ++i) {
    const std::string name = "block" + std::to_string(i);
    h = net.Apply(name + ".add", "add", {h, net.Apply(name, op, {h})});
  }
  Rig rig;
  rig.options.micro_batches = micro_batches;
  rig.options.rank.world_size = ranks;
  if (device != nullptr) rig.plugins.device = device;
  auto communicator = std::make_unique<FakeCommunicator>(ranks);
  communicator->described.device_memory = 1;
  const Status made =
      rig.Make(net.Finish(h), std::make_unique<RandomScheduler>(), std::move(communicator));
  ASSERT_TRUE(made.ok()) << made.message();
  rig.communicator->submitted.reserve(1000);
  const float input[12] = {1, 2, 3};
  const int32_t targets[12] = {1, 0, 2};
  exec::StepInput step{
      .input = input, .target = targets, .samples = 4, .step = 1, .learning_rate = 0.1f};
  ASSERT_TRUE(rig.executor->Step(step).ok());
  for (int64_t samples : {4, 4, 2, 0, 4}) {
    rig.scheduler->order.clear();
    ++step.step;
    step.samples = samples;
    const conform::AllocationCounter counter;
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

TEST(AllocationTest, StepsOfAcceleratorsAllocateNothing) {
  PromptAccelerator device;
  for (const int ranks : {1, 3}) ExpectNoAllocations(1, &device, ranks);
}

TEST(AllocationTest, GathersAllocateNothing) {
  FakeCommunicator network(2);
  network.submitted.reserve(100);
  exec::Submitter submitter(network, "fake", nullptr);
  exec::CommunicatorReplicas replicas(submitter, /*queues=*/false, {.rank = 1, .world_size = 2}, 1,
                                      1000);
  float all[2] = {};
  const conform::AllocationCounter counter;
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
