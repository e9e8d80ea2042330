#include "core/exec/device_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "tests/fakes/async_accelerator.h"

namespace engine::test {
namespace {

using ::testing::HasSubstr;

// Keeps what a lane says.
class Reached {
 public:
  DeviceLane::OnReached callback() {
    return [this](uint32_t task, Status status) {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(task);
      statuses_.push_back(std::move(status));
      changed_.notify_all();
    };
  }
  // Waits for `count` calls.
  std::vector<uint32_t> Tasks(size_t count) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return tasks_.size() >= count; });
    EXPECT_TRUE(came) << tasks_.size() << " of " << count;
    return tasks_;
  }
  Status status(size_t i) {
    const std::lock_guard lock(mutex_);
    return statuses_.at(i);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> tasks_;
  std::vector<Status> statuses_;
};

struct DeviceLaneTest : public ::testing::Test {
  void SetUp() override {
    Stream* made = nullptr;
    ASSERT_TRUE(device.CreateStream(&made).ok());
    stream.reset(made);
  }
  std::unique_ptr<DeviceLane> Make(size_t capacity, int64_t timeout_ms) {
    auto lane = DeviceLane::Create(device, capacity, timeout_ms, reached.callback());
    EXPECT_TRUE(lane.ok());
    return std::move(*lane);
  }
  Status Queue(AsyncStream::Work work) {
    return static_cast<AsyncStream*>(stream.get())->Queue(std::move(work));
  }

  Reached reached;
  AsyncAccelerator device{{.max_delay_us = 50}};
  std::unique_ptr<Stream> stream;
};

TEST_F(DeviceLaneTest, MarksAreReachedInOrderAndAfterTheWorkBeforeThem) {
  constexpr uint32_t kMarks = 100;
  std::atomic<uint32_t> done{0};
  std::atomic<int> early{0};
  auto lane = DeviceLane::Create(device, 8, 20000,
                                 [&, callback = reached.callback()](uint32_t task, Status status) {
                                   if (done.load() <= task) ++early;
                                   callback(task, std::move(status));
                                 });
  ASSERT_TRUE(lane.ok());
  for (uint32_t task = 0; task < kMarks; ++task) {
    if (task >= 8) reached.Tasks(task - 6);  // room for one more
    ASSERT_TRUE(Queue([&]() -> Status {
                  ++done;
                  return {};
                }).ok());
    ASSERT_TRUE((*lane)->Mark(task, stream.get()).ok());
  }
  std::vector<uint32_t> wanted(kMarks);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(reached.Tasks(kMarks), wanted);
  EXPECT_EQ(early, 0);
  lane->reset();
}

TEST_F(DeviceLaneTest, NothingIsReachedBeforeTheDeviceGoesOn) {
  auto lane = Make(4, 20000);
  device.Stop();
  ASSERT_TRUE(lane->Mark(3, stream.get()).ok());
  EXPECT_EQ(lane->in_flight(), 1u);
  EXPECT_TRUE(reached.Tasks(0).empty());
  device.Resume();
  EXPECT_THAT(reached.Tasks(1), ::testing::ElementsAre(3));
  EXPECT_TRUE(reached.status(0).ok());
}

TEST_F(DeviceLaneTest, AnErrorOfTheDeviceComesWithTheTask) {
  auto lane = Make(4, 20000);
  ASSERT_TRUE(lane->Mark(1, stream.get()).ok());
  ASSERT_TRUE(
      Queue([] { return Status::Error(StatusCode::kInternal, "a kernel has failed"); }).ok());
  ASSERT_TRUE(lane->Mark(2, stream.get()).ok());
  EXPECT_THAT(reached.Tasks(2), ::testing::ElementsAre(1, 2));
  EXPECT_TRUE(reached.status(0).ok());
  EXPECT_THAT(reached.status(1).message(), HasSubstr("a kernel has failed"));
}

TEST_F(DeviceLaneTest, AMarkThatIsNeverReachedIsATimeout) {
  auto lane = Make(4, 250);
  device.Stop();
  ASSERT_TRUE(lane->Mark(7, stream.get()).ok());
  EXPECT_THAT(reached.Tasks(1), ::testing::ElementsAre(7));
  EXPECT_EQ(reached.status(0).code(), StatusCode::kTimeout);
  EXPECT_THAT(reached.status(0).message(), HasSubstr("250 ms"));
  device.Resume();
}

TEST_F(DeviceLaneTest, ForgetsWhatWasNotReachedWhenItGoes) {
  device.Stop();
  auto lane = Make(4, 20000);
  ASSERT_TRUE(lane->Mark(1, stream.get()).ok());
  ASSERT_TRUE(lane->Mark(2, stream.get()).ok());
  lane.reset();
  EXPECT_TRUE(reached.Tasks(0).empty());
  device.Resume();
}

}  // namespace
}  // namespace engine::test
