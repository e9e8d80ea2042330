// Ranks of the nccl plugin as threads, over the fakes of NCCL and of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/device.h"
#include "tests/conformance/plugin_under_test.h"
#include "tools/conform/communicator/communicator_rig.h"

namespace engine::test {

using Clock = std::chrono::steady_clock;

// The promises are of a second or a deadline; a loaded machine may take longer to notice.
constexpr auto kPromptly = std::chrono::seconds(6);

// Expects that its scope takes no longer.
struct Promptly {
  const Clock::time_point start = Clock::now();
  ~Promptly() { EXPECT_LT(Clock::now() - start, kPromptly); }
};

// A sum.
inline Transfer InPlace(std::vector<float>& data, uint64_t sequence, int64_t timeout_ms = 30000) {
  return {.send = data.data(),
          .recv = data.data(),
          .count = static_cast<int64_t>(data.size()),
          .bucket = 3,
          .sequence = sequence,
          .timeout_ms = timeout_ms};
}

inline const char kNcclPlugin[] = ENGINE_TEST_PLUGIN_DIR "/libengine_nccl.so";

// A stream of the fake runtime as the engine sees it.
class TestStream final : public StreamBase {
 public:
  // Of the GPU of a rank.
  explicit TestStream(int rank) {
    EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~TestStream() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  Status Record(Event*) noexcept override { return {}; }
  Status Wait(Event*) noexcept override { return {}; }
  Status Synchronize(int64_t) noexcept override {
    return cudaStreamSynchronize(stream_) == cudaSuccess
               ? Status()
               : Status::Error(StatusCode::kDevice, "the fake runtime failed");
  }
  void* native() noexcept override { return stream_; }

  // Queues work that lasts until `gate` is true.
  void Hold(std::atomic<bool>* gate) {
    Do([gate] {
      while (!gate->load()) std::this_thread::yield();
    });
  }
  // Queues the filling of `data` with `value`.
  void Fill(std::vector<float>* data, float value) {
    Do([=] { data->assign(data->size(), value); });
  }
  // Queues a copy; cudaMemcpyAsync would wait, since this is no memory of a GPU.
  void Copy(std::vector<float>* target, const std::vector<float>* source) {
    Do([=] { *target = *source; });
  }

 private:
  void Do(std::function<void()> work) {
    using Work = std::function<void()>;
    const auto run = [](void* kept) { (*std::unique_ptr<Work>(static_cast<Work*>(kept)))(); };
    EXPECT_EQ(cudaLaunchHostFunc(stream_, run, new Work(std::move(work))), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr;
};

// FAKE_NCCL_FAULT for the life of the object.
class Fault {
 public:
  explicit Fault(const char* faults) { setenv("FAKE_NCCL_FAULT", faults, 1); }
  ~Fault() { unsetenv("FAKE_NCCL_FAULT"); }
};

// What Create of rank 0 in a world of one says.
inline Status ErrorOfCreation(Host& host, const OptionValues::Overrides& options) {
  return Must(PluginUnderTest::Load(kNcclPlugin)).Create<Communicator>(host, options).status();
}

// Runs body(world, rank) for all ranks of a world.
template <typename Body>
void OnRanks(int ranks, const OptionValues::Overrides& options, const Body& body) {
  World world(kNcclPlugin, ranks, options);
  RunRanks(ranks, [&](int rank) { body(world, rank); });
}
template <typename Body>
void OnRanks(int ranks, int64_t rendezvous_timeout_ms, const Body& body) {
  World world(kNcclPlugin, ranks, {}, rendezvous_timeout_ms);
  RunRanks(ranks, [&](int rank) { body(world, rank); });
}
template <typename Body>
void OnRanks(int ranks, const Body& body) {
  OnRanks(ranks, OptionValues::Overrides(), body);
}

// Waits, a few seconds at most, until `done`.
template <typename Done>
bool Eventually(const Done& done) {
  for (int i = 0; i < 10000 && !done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done();
}

}  // namespace engine::test
