// The two ways to an all-reduce between GPUs that nccl_overhead compares. Both sum float32 in
// place, one transfer at a time, on communicators of one configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/communicator.h"
#include "engine/ext/shared_memory.h"
#include "engine/host.h"
#include "gpu.h"
#include "library.h"
#include "tests/conformance/plugin_under_test.h"

namespace engine::bench {

constexpr int64_t kTransferTimeoutMs = 30000;
constexpr int64_t kMeetingTimeoutMs = 60000;

struct CallTime {
  double call_us = 0;   // until the call of this thread returned
  double total_us = 0;  // until this thread knew of the end
};

class NcclContender {
 public:
  virtual ~NcclContender() = default;

  // Memory that NCCL knows, for the life of the contender; null: it gives none.
  virtual Result<float*> Register(size_t size_bytes) = 0;
  // Collective.
  virtual Result<CallTime> AllReduce(float* data, int64_t count) = 0;
};

// ncclAllReduce, cudaEventRecord where NCCL took the call at once, and a look at the event again
// and again by the calling thread, with the pauses of the plugin's watchdog.
class PlainNccl final : public NcclContender {
 public:
  // Collective. `max_ctas` 0: NCCL decides. Borrows `host`, for its ranks and its store.
  static Result<std::unique_ptr<PlainNccl>> Create(Host& host,
                                                   std::shared_ptr<const nccl::Library> library,
                                                   int max_ctas);
  ~PlainNccl() override;

  Result<float*> Register(size_t size_bytes) override;
  Result<CallTime> AllReduce(float* data, int64_t count) override;

 private:
  PlainNccl(std::shared_ptr<const nccl::Library> library, nccl::GpuStream stream)
      : library_(std::move(library)), call_(library_->functions()), stream_(std::move(stream)) {}

  Status Begin(Host& host, int max_ctas);
  Status End();
  // Until NCCL is not at work with a call any more.
  Status Settle(ncclResult_t result, const char* what, int64_t timeout_ms);
  Status AwaitEvent(int64_t start_ns);

  const std::shared_ptr<const nccl::Library> library_;
  const nccl::Functions& call_;
  const nccl::GpuStream stream_;
  ncclComm_t comm_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* memory_ = nullptr;  // of ncclMemAlloc
  void* registration_ = nullptr;
};

// Submit, WaitHost and Release of a communicator plugin.
class PluginNccl final : public NcclContender {
 public:
  // Collective. Borrows `host`.
  static Result<std::unique_ptr<PluginNccl>> Create(Host& host, const test::PluginUnderTest& plugin,
                                                    int max_ctas);

  Result<float*> Register(size_t size_bytes) override;
  Result<CallTime> AllReduce(float* data, int64_t count) override;

 private:
  explicit PluginNccl(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  const std::unique_ptr<Communicator> communicator_;
  uint64_t sequence_ = 0;
};

}  // namespace engine::bench
