// What plugins answer is looked at where it is asked for; one that does not return, or does not let
// go of memory, ends the run with its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/call_watch.h"
#include "kit/float16.h"
#include "tests/unit/exec/tangled_graph.h"

namespace engine::test {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kLookMs = 5, kLimitMs = 60;

// A run whose plugins are watched.
struct Watched : Rig {
  base::AbortSignal abort;
  std::atomic<bool> released{false};  // of whoever hangs
  base::CallWatch watch{abort, kLimitMs / base::kCallTimeouts, kLookMs};
  int token = 0;

  Watched() {
    plugins.watch = &watch;
    options.timeout_ms = options.device_timeout_ms = kLimitMs;
    token = abort.Listen([this](const Status& reason) {
      if (executor != nullptr) executor->Abort(reason);
      released = true;
    });
  }
  ~Watched() {
    if (token != 0) abort.Forget(token);
    executor.reset();  // it uses the watch
  }
  // Returns when the run was given up, or after a while that no test takes.
  void Hang() {
    for (int i = 0; i < 2000 && !released; ++i) std::this_thread::sleep_for(milliseconds(5));
  }
};

TEST(CallWatch, NamesTheInnermostCallThatIsOpen) {
  base::AbortSignal abort;
  base::CallWatch watch(abort, kLimitMs, kLookMs);
  const auto* const task = watch.Describe("op 'x' has not returned", 600000);
  const auto* const inner = watch.Describe("communicator 'y' has not returned", 1000);
  {
    const base::OpenCall outer(&watch, base::CallWatch::kCompute, task);
    { const base::OpenCall open(&watch, base::CallWatch::kCompute, inner); }
    EXPECT_EQ(watch.Enter(base::CallWatch::kCompute, inner), task);
    for (int i = 0; i < 4000 && !abort.raised(); ++i) std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(abort.reason().code(), StatusCode::kTimeout);
  EXPECT_STREQ(abort.reason().message(), "communicator 'y' has not returned for 1 s");
}

TEST(CallWatch, ManyShortCallsOfOneNameAreNoLongOne) {
  base::AbortSignal abort;
  base::CallWatch watch(abort, kLimitMs, kLookMs);
  const auto* const call = watch.Describe("op 'x' has not returned", kLimitMs);
  const auto end = std::chrono::steady_clock::now() + milliseconds(5 * kLimitMs);
  while (std::chrono::steady_clock::now() < end) {
    const base::OpenCall open(&watch, base::CallWatch::kIo, call);
  }
  EXPECT_FALSE(abort.raised()) << abort.reason().message();
}

class HangingSgd final : public OptimizerBase {
 public:
  explicit HangingSgd(std::function<void()> hang) : hang_(std::move(hang)) {}
  OptimizerTraits traits() const noexcept override { return {}; }
  Status Update(const UpdateCall&) noexcept override {
    hang_();
    return Status::Error(StatusCode::kInternal, "interrupted");
  }

 private:
  const std::function<void()> hang_;
};

class HangingScheduler final : public RandomScheduler {
 public:
  explicit HangingScheduler(std::function<void()> hang) : hang_(std::move(hang)) {}
  Action Next(Lane lane) noexcept override {
    if (++calls_ == 20) hang_();
    return RandomScheduler::Next(lane);
  }

 private:
  const std::function<void()> hang_;
  int calls_ = 0;
};

// Takes transfers and hangs in Submit, or never ends one.
class HangingCommunicator final : public CommunicatorBase {
 public:
  enum Where { kSubmit, kEnd };
  HangingCommunicator(Where where, std::function<void()> hang)
      : where_(where), hang_(std::move(hang)) {}
  CommunicatorTraits traits() const noexcept override { return {.kinds = 31, .dtypes = 31}; }
  Status Submit(const Transfer&, Work** out) noexcept override {
    if (where_ == kSubmit) hang_();
    const std::lock_guard lock(mutex_);
    *out = &works_.emplace_back();
    return {};
  }
  void Abort(const Status& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    for (HubWork& work : works_) work.End(reason);
  }

 private:
  const Where where_;
  const std::function<void()> hang_;
  std::mutex mutex_;
  std::deque<HubWork> works_;
};

// That a step ends because of the call that hangs, with the sentence of the watch: what the plugin
// says when it returns at last comes later.
void ExpectNamed(Watched& rig, std::unique_ptr<Scheduler> scheduler,
                 std::unique_ptr<Communicator> communicator, const char* sentence) {
  ASSERT_THAT(rig.Make(TangledGraph(), std::move(scheduler), std::move(communicator)), IsOk());
  const BatchData batch;
  const auto done = rig.Step(batch.Step(1));
  EXPECT_THAT(done.status(), FailsWith(StatusCode::kTimeout, HasSubstr(sentence)));
}

std::unique_ptr<Scheduler> InSequence() {
  return std::make_unique<RandomScheduler>();
}

TEST(Watch, AnOptimizerThatHangsIsNamed) {
  Watched rig;
  rig.plugins.optimizer = std::make_unique<HangingSgd>([&] { rig.Hang(); });
  ExpectNamed(rig, InSequence(), std::make_unique<FakeCommunicator>(),
              "optimizer 'test_sgd' has not returned from 'update ");
}

TEST(Watch, ASchedulerThatHangsIsNamed) {
  Watched rig;
  auto scheduler = std::make_unique<HangingScheduler>([&] { rig.Hang(); });
  // The lock is held meanwhile: whoever ends the run waits for it.
  rig.abort.Forget(std::exchange(rig.token, 0));
  rig.token = rig.abort.Listen([&](const Status& reason) {
    rig.released = true;
    rig.executor->Abort(reason);
  });
  ASSERT_TRUE(rig.Make(TangledGraph(), std::move(scheduler)).ok());
  const BatchData batch;
  (void)rig.Step(batch.Step(1));
  rig.abort.Forget(std::exchange(rig.token, 0));
  EXPECT_THAT(rig.abort.reason().message(),
              HasSubstr("scheduler 'test_sched' has not returned from On or Next"));
}

TEST(Watch, ACommunicatorThatHangsIsNamed) {
  for (const auto& [where, sentence] :
       {std::pair{HangingCommunicator::kSubmit,
                  "communicator 'hub' has not returned from Submit of 'transfer statistics'"},
        {HangingCommunicator::kEnd, "communicator 'hub' has not ended the transfers of a step"}}) {
    Watched rig;
    ExpectNamed(rig, InSequence(),
                std::make_unique<HangingCommunicator>(where, [&] { rig.Hang(); }), sentence);
  }
}

class EmptyDevice final : public HostDevice {
 public:
  Status Allocate(size_t, void** out) noexcept override { return *out = nullptr, Status(); }
};

// What plugins of other roles answer is a matter of tests/system/cli/fault_test.cc.
TEST(Answers, ADeviceThatMakesNoMemoryIsNamed) {
  Rig rig;
  EmptyDevice device;
  rig.plugins.device = &device;
  EXPECT_THAT(
      rig.Make(TangledGraph(), InSequence(), std::make_unique<FakeCommunicator>()),
      FailsWith(StatusCode::kPlugin, HasSubstr("device 'cpu' reported success and made nothing")));
}

// Sums of a global hook, of a run that is sharded.
class SummingHook final : public PassiveHook {
 public:
  SummingHook(std::span<float> sums, std::thread::id thread)
      : PassiveHook({.scope = HookScope::kGlobal}), sums_(sums), thread_(thread) {}
  std::span<float> Observed() noexcept override {
    EXPECT_EQ(std::this_thread::get_id(), thread_) << "not on the compute lane";
    return sums_;
  }

 private:
  const std::span<float> sums_;
  const std::thread::id thread_;
};

// Rank 0 of two that hold the same, whose transfers end on other threads.
Status StepWithSums(std::span<float> sums, std::vector<Transfer>* submitted) {
  Rig rig;
  rig.options.rank.world_size = 2;
  rig.options.shard_optimizer = true;
  ENGINE_RETURN_IF_ERROR(
      rig.Make(TangledGraph(), InSequence(),
               std::make_unique<FakeCommunicator>(2, std::chrono::microseconds(100)),
               HookList(std::make_unique<SummingHook>(sums, std::this_thread::get_id()))));
  const BatchData batch;
  ENGINE_RETURN_IF_ERROR(rig.Step(batch.Step(1)).status());
  *submitted = rig.communicator->submitted;
  return {};
}

TEST(Answers, SumsOfAHookAreAskedForOnTheComputeLane) {
  float sums[17] = {3, 4};
  std::vector<Transfer> submitted;
  ASSERT_THAT(StepWithSums({sums, 2}, &submitted), IsOk());
  const auto is_sum = [&](const Transfer& transfer) {
    return transfer.send == sums && transfer.recv == sums && transfer.count == 2;
  };
  EXPECT_EQ(std::count_if(submitted.begin(), submitted.end(), is_sum), 1);
  EXPECT_EQ(sums[0], 6);
}

// Says when memory was freed.
class CountingDevice final : public HostDevice {
 public:
  void Free(void* memory) noexcept override {
    if (memory != nullptr) ++freed;
    HostDevice::Free(memory);
  }
  std::atomic<int> freed{0};
};

// Ends what is under way some time after Abort, or never. Its works outlive it.
class LateCommunicator final : public CommunicatorBase {
 public:
  LateCommunicator(CountingDevice& device, milliseconds delay, std::deque<HubWork>* works)
      : device_(device), delay_(delay), works_(*works) {}
  ~LateCommunicator() override {
    if (ends_.joinable()) ends_.join();
  }
  CommunicatorTraits traits() const noexcept override { return {.kinds = 31, .dtypes = 31}; }
  Status Submit(const Transfer&, Work** out) noexcept override {
    const std::lock_guard lock(mutex_);
    *out = &works_.emplace_back();
    submitted = true;
    return {};
  }
  void Abort(const Status& reason) noexcept override {
    if (delay_.count() == 0 || ends_.joinable()) return;
    freed_before = device_.freed;
    ends_ = std::thread([this, reason] {
      std::this_thread::sleep_for(delay_);
      freed_after = device_.freed.load();
      const std::lock_guard lock(mutex_);
      for (HubWork& work : works_) work.End(reason);
    });
  }
  std::atomic<bool> submitted{false};
  int freed_before = -1;
  std::atomic<int> freed_after{-1};

 private:
  CountingDevice& device_;
  const milliseconds delay_;
  std::mutex mutex_;
  std::deque<HubWork>& works_;
  std::thread ends_;
};

// A step that ends because rank 1 is gone, when it has sent something.
void LoseRankOne(Rig& rig, const LateCommunicator& communicator) {
  std::thread ends([&] {
    while (!communicator.submitted) std::this_thread::yield();
    rig.executor->Abort(Status::Error(StatusCode::kPeerLost, "rank 1 is gone"));
  });
  const BatchData batch;
  EXPECT_THAT(rig.Step(batch.Step(1)), FailsWith(StatusCode::kPeerLost, "rank 1 is gone"));
  ends.join();
}

TEST(Memory, IsFreedWhenTheCommunicatorHasLetGoOfIt) {
  for (const bool in_step : {true, false}) {
    CountingDevice device;
    std::deque<HubWork> works;
    Rig rig;
    rig.plugins.device = &device;
    // No wait of this test is long.
    rig.options.timeout_ms = rig.options.arrival_timeout_ms = 1 - exec::kGraceMs;
    auto made = std::make_unique<LateCommunicator>(device, milliseconds(50), &works);
    LateCommunicator& communicator = *made;
    ASSERT_THAT(rig.Make(TangledGraph(), InSequence(), std::move(made)), IsOk());
    if (in_step) {
      LoseRankOne(rig, communicator);
    } else {
      float numbers[4] = {};
      EXPECT_THAT(rig.executor->AllReduce(numbers), FailsWith(StatusCode::kTimeout));
      EXPECT_NE(communicator.freed_after, -1) << "the caller has its memory back too early";
    }
    rig.executor.reset();
    EXPECT_EQ(communicator.freed_after, communicator.freed_before);
    EXPECT_GT(device.freed, communicator.freed_before);
  }
}

// A communicator that never lets go ends nothing but this run, the first cause is told, and the log
// says what stays. That is found by its works, so no tool takes it for lost.
TEST(Memory, StaysWhereItMayStillBeWritten) {
  static std::deque<HubWork>* const works = new std::deque<HubWork>();
  CountingDevice device;
  Rig rig;
  rig.plugins.device = &device;
  rig.options.drain_ms = 20;
  std::vector<std::string> log;
  rig.options.log = [&log](LogLevel, std::string_view line) { log.emplace_back(line); };
  auto made = std::make_unique<LateCommunicator>(device, milliseconds(0), works);
  LateCommunicator& communicator = *made;
  ASSERT_THAT(rig.Make(TangledGraph(), InSequence(), std::move(made)), IsOk());
  LoseRankOne(rig, communicator);
  EXPECT_THAT(log, ::testing::IsEmpty());
  rig.executor.reset();
  EXPECT_EQ(device.freed, 0);
  EXPECT_THAT(log, ::testing::ElementsAre(
                       HasSubstr("communicator 'hub' has not ended its transfers in 20 ms after")));
}

TEST(Memory, OfAHostHasTheRoundedCopiesThatOpsRead) {
  Rig rig;
  Net net(rig.ops, kSamples, {kWidth});
  const ModelValue h = net.Apply("first", "scale", {Net::kX});
  ASSERT_THAT(rig.Make(net.Finish(net.Apply("second", "rounded", {h}))), IsOk());
  exec::ModelMemory& memory = rig.executor->memory();
  ASSERT_THAT(memory.InitializeParameters(), IsOk());
  const auto* const copies = static_cast<const uint16_t*>(memory.copy_at(0));
  for (int64_t i = 0; i < memory.layout().total_count; ++i) {
    EXPECT_EQ(copies[i], kit::ToBFloat16(memory.parameters()[i])) << i;
  }
}

}  // namespace
}  // namespace engine::test
