// What ends a run on an accelerator, and how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/exec/async_world.h"

namespace engine::test {
namespace {

TEST(AcceleratorFailureTest, AFaultOfTheDataEndsTheRunWithItsSentence) {
  for (const int size : {1, 2}) {
    std::atomic<int> calls{0};
    AsyncWorld world{.size = size, .steps = std::vector<AsyncStep>(4)};
    world.before_call = [&](const AsyncRank& self, const std::string& op, bool backward) {
      if (op != "noise" || backward || self.rank != 0 || ++calls != 2) return;
      self.device->SetFault(Status::Error(StatusCode::kConfig, "token 7 is out of range"));
    };
    const auto outcomes = world.Run();
    EXPECT_THAT(outcomes[0].status,
                FailsWith(StatusCode::kConfig, HasSubstr("token 7 is out of range")));
    // Nothing but the first step was said to be good.
    EXPECT_LE(outcomes[0].losses.size(), 1u);
    if (size == 2) {
      EXPECT_FALSE(outcomes[1].status.ok());
    }
  }
}

// Fails when it is done, in the backward pass.
class BrokenOp final : public ScaleOp {
 public:
  Status Backward(const OpCall&) noexcept override {
    return Status::Error(StatusCode::kInternal, "the device is on fire");
  }
};

TEST(AcceleratorFailureTest, AnErrorOfTheDeviceNamesTheTransferThatFollows) {
  AsyncWorld world{.size = 2};
  world.own_op = [](const std::string& name) {
    return name == "broken" ? std::make_unique<BrokenOp>() : nullptr;
  };
  world.model = [](const plugin::OpFactory& ops, int64_t max_samples) {
    Net net(ops, max_samples, {kAsyncWidth});
    return net.Finish(net.Apply("layer", "broken", {Net::kX}));
  };
  world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
    (void)world.RunSteps(self, executor);  // may hear of it, or not yet
    EXPECT_FALSE(executor.Flush().ok());
    return executor.Flush();
  };
  // Of the rank that has heard of the other one first.
  const auto outcomes = world.Run();
  const auto names_it = [](const AsyncOutcome& outcome) {
    return ::testing::Matches(
        AllOf(HasSubstr("transfer layer.weight"), HasSubstr("the device is on fire")))(
        std::string(outcome.status.message()));
  };
  EXPECT_TRUE(std::ranges::any_of(outcomes, names_it)) << outcomes[0].status.message();
}

TEST(AcceleratorFailureTest, ADeviceThatStopsEndsTheRunInTime) {
  for (const int size : {1, 2}) {
    AsyncWorld world{.size = size, .timeout_ms = 300};
    world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
      if (self.rank == 0) self.device->Stop();
      return world.RunSteps(self, executor, 3);
    };
    const auto outcomes = world.Run();
    EXPECT_THAT(outcomes[0].status, FailsWith(StatusCode::kTimeout, HasSubstr("300 ms")));
    EXPECT_FALSE(outcomes.back().status.ok());
  }
}

// The first layer's gradient, the last of a backward pass, never comes.
TEST(AcceleratorFailureTest, ATransferThatHangsEndsTheRunInTimeWithItsName) {
  AsyncWorld world{.size = 2, .timeout_ms = 300};
  world.before_call = [&](const AsyncRank& self, const std::string& op, bool backward) {
    if (self.rank == 1 && op == "scale_first" && backward) self.device->Stop();
  };
  world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
    const AsyncWorld::Batch batch = world.MakeBatch(self.rank, 1, {});
    EXPECT_TRUE(executor.Step(batch.step).ok());
    return executor.Flush();
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = world.Run();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(outcomes[0].status.code(), StatusCode::kTimeout);
  EXPECT_EQ(outcomes[0].status.rank(), 1);
  EXPECT_THAT(outcomes[0].status.message(), HasSubstr("transfer first.weight"));
  EXPECT_FALSE(outcomes[1].status.ok());
}

// Transfers are submitted while the device has all of its work before it, which may take longer
// than any of them.
TEST(AcceleratorFailureTest, TheDeadlineOfATransferIsThatOfItsWay) {
  AsyncWorld world{.size = 2, .timeout_ms = 300};
  world.device_timeout_ms = 20000;
  world.before_call = [&](const AsyncRank&, const std::string& op, bool backward) {
    if (op == "scale_first" && backward)
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
  };
  world.steps.resize(2);
  ExpectOk(world.Run());
}

TEST(AcceleratorFailureTest, AReplayThatHangsEndsTheRunInTime) {
  AsyncWorld world{.size = 2, .record = true, .timeout_ms = 300};
  world.device_timeout_ms = 60000;
  world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
    ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor, 6));
    if (self.rank == 0) self.device->Stop();
    ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor, 9, 7));
    return executor.Flush();
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = world.Run();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(outcomes[0].status,
              FailsWith(StatusCode::kTimeout, HasSubstr("the device did not come to its end")));
  EXPECT_FALSE(outcomes[1].status.ok());
}

TEST(AcceleratorFailureTest, AnAbortIsHeardWhileTheHostWaitsForTheDevice) {
  for (const int size : {1, 2}) {
    AsyncWorld world{.size = size};
    world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
      if (self.rank == 0) self.device->Stop();
      ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor));
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        executor.Abort(Status::Error(StatusCode::kPeerLost, "rank 7 has gone"));
      });
      const Status status = executor.Flush();
      other.join();
      return status;
    };
    const auto begin = std::chrono::steady_clock::now();
    for (const AsyncOutcome& outcome : world.Run()) {
      EXPECT_THAT(outcome.status.message(), HasSubstr("rank 7 has gone"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  }
}

TEST(AcceleratorFailureTest, AnExecutorMayGoWhileTheDeviceWorks) {
  for (const int size : {1, 2}) {
    for (const bool record : {false, true}) {
      AsyncWorld world{.size = size, .max_delay_us = 1000, .record = record};
      world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
        return world.RunSteps(self, executor, (record ? 5u : 1u));
      };
      for (const AsyncOutcome& outcome : world.Run()) {
        // A rank that has gone ends the others.
        const bool alone = size == 1;
        EXPECT_TRUE(outcome.status.ok() || !alone) << outcome.status.message();
      }
    }
  }
}

TEST(AcceleratorFailureTest, ACommunicatorOfHostMemoryIsRefused) {
  AsyncAccelerator device;
  const AsyncWorld world{.size = 2};
  std::atomic<int> unused{0};
  Rig rig;
  rig.plugins.device = &device;
  rig.ops = world.Ops({.device = &device}, &unused);
  rig.options = TestOptions(0, 2, 20000, "posted_letters");
  const Status made = rig.Make(world.Model(rig.ops), std::make_unique<RandomScheduler>(),
                               std::make_unique<FakeCommunicator>(2));
  EXPECT_THAT(made, FailsWith(StatusCode::kConfig,
                              AllOf(HasSubstr("'posted_letters' moves host memory only"),
                                    HasSubstr("'async'"))));
}

}  // namespace
}  // namespace engine::test
