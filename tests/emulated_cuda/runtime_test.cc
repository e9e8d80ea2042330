// The fake runtime: queues that run by themselves, events, recordings, memory, errors that tests
// ask for.
#include "tests/emulated_cuda/runtime.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/device_array.h"

namespace emulated_cuda {
namespace {

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

  void Add(std::function<void()> work) const {
    ASSERT_EQ(Enqueue(stream_,
                      [work = std::move(work)] {
                        work();
                        return cudaSuccess;
                      }),
              cudaSuccess);
  }
  void Synchronize() const { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { EXPECT_EQ(cudaEventCreate(&event_), cudaSuccess); }
  ~Event() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that waits until the test lets it go on.
class Gate {
 public:
  std::function<void()> Wait() {
    return [future = std::shared_future<void>(open_.get_future())] { future.wait(); };
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

TEST(EmulatedStream, StreamsWaitForEachOtherOnlyByEvents) {
  Stream first, second;
  Event event;
  Gate gate;
  std::atomic<int> value = 0;
  std::atomic<int> seen = -1;
  first.Add(gate.Wait());
  first.Add([&] { value = 1; });
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  second.Add([&] { seen = value.load(); });
  second.Synchronize();
  EXPECT_EQ(seen, 0);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  second.Add([&] { seen = value.load(); });
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.Open();
  second.Synchronize();
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedCopy, WrongKindsAndRangesAreRefused) {
  Array<int> device(4);
  int host[8] = {};
  EXPECT_EQ(cudaMemcpy(device.data(), host, 20, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device.data(), host, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, host + 4, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device.data() + 1, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device.data() + 1, 0, 12), cudaSuccess);
  EXPECT_EQ(device.Read(), (std::vector<int>{-1, 0, 0, 0}));  // fresh memory is poison
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(EmulatedMemory, IsKnownAndLimited) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  EXPECT_TRUE(emulated_cuda_is_device_range(memory, 1000));
  EXPECT_FALSE(emulated_cuda_is_device_range(memory, 1001));
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, static_cast<char*>(memory) + 999), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &attributes), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&memory, size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, SIZE_MAX), cudaErrorMemoryAllocation);
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedGraph, AllocatingSpoilsTheRecordingOfTheSameThread) {
  Stream stream;
  cudaGraph_t graph = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::thread([&] { EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess); }).join();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedGraph, OtherStreamsJoinByEventsAndMustComeBack) {
  Stream origin, side;
  Event fork, join;
  std::vector<int> seen;
  const auto record = [&](bool come_back) {
    EXPECT_EQ(cudaStreamBeginCapture(origin, cudaStreamCaptureModeRelaxed), cudaSuccess);
    origin.Add([&] { seen.push_back(1); });
    EXPECT_EQ(cudaEventRecord(fork, origin), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(side, fork, 0), cudaSuccess);
    side.Add([&] { seen.push_back(2); });
    EXPECT_EQ(cudaEventRecord(join, side), cudaSuccess);
    if (come_back) {
      EXPECT_EQ(cudaStreamWaitEvent(origin, join, 0), cudaSuccess);
    }
    origin.Add([&] { seen.push_back(3); });
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(origin, &graph);
    return std::pair(error, graph);
  };
  EXPECT_EQ(record(false).first, cudaErrorStreamCaptureUnjoined);
  const auto [error, graph] = record(true);
  ASSERT_EQ(error, cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, side), cudaSuccess);
  side.Synchronize();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST(EmulatedGraph, WaitingForARecordedStreamSpoilsTheRecording) {
  Stream stream;
  int host = 0;
  Array<int> device(1);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device.data(), &host, 4, cudaMemcpyHostToDevice, stream),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());
}

// Settings of the environment are read once per process.
class EmulatedSettings : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Runs in a child: exits with 0 if `call` gives `expected`.
  template <typename Function>
  [[noreturn]] static void ExitWith(const char* name, const char* value, Function call) {
    setenv(name, value, 1);
    std::exit(call() ? 0 : 1);
  }
};

TEST_F(EmulatedSettings, FaultsComeAtTheCallThatTheyAreFor) {
  const auto calls = [] {
    void* memory = nullptr;
    int count = 0;
    return cudaMalloc(&memory, 4) == cudaSuccess &&
           cudaMalloc(&memory, 4) == cudaErrorMemoryAllocation &&
           cudaMalloc(&memory, 4) == cudaSuccess &&
           cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver &&
           cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver;
  };
  EXPECT_EXIT(ExitWith("EMULATED_CUDA_FAULT", "cudaMalloc:2=2,cudaGetDeviceCount:1+=35", calls),
              ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(ExitWith("EMULATED_CUDA_FAULT", "cudaMalloc", calls),
               "EMULATED_CUDA_FAULT has 'cudaMalloc': must be <function>:<call>=<code>");
}

TEST_F(EmulatedSettings, AnErrorOfTheDeviceStays) {
  const auto calls = [] {
    void* memory = nullptr;
    return cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress &&
           cudaMalloc(&memory, 4) == cudaErrorIllegalAddress &&
           cudaGetLastError() == cudaErrorIllegalAddress &&
           cudaGetLastError() == cudaErrorIllegalAddress;
  };
  EXPECT_EXIT(ExitWith("EMULATED_CUDA_FAULT", "cudaStreamSynchronize:1=700", calls),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(EmulatedSettings, Devices) {
  const auto none = [] {
    int count = -1;
    return cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0 &&
           cudaSetDevice(0) == cudaErrorNoDevice;
  };
  EXPECT_EXIT(ExitWith("EMULATED_CUDA_DEVICES", "0", none), ::testing::ExitedWithCode(0), "");
  const auto two = [] {
    int count = 0;
    cudaStream_t stream = nullptr;
    Event event;
    return cudaGetDeviceCount(&count) == cudaSuccess && count == 2 &&
           cudaSetDevice(2) == cudaErrorInvalidDevice && cudaSetDevice(1) == cudaSuccess &&
           cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle;
  };
  EXPECT_EXIT(ExitWith("EMULATED_CUDA_DEVICES", "2", two), ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(ExitWith("EMULATED_CUDA_DEVICES", "9", none), "must be 0 to 8");
}

}  // namespace
}  // namespace emulated_cuda
