#include "bench/collectives/nccl_contenders.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "cuda_error.h"
#include "kit/deadline.h"

namespace engine::bench {
namespace {

using kit::MonotonicNs;
using nccl::ToStatus;

constexpr int64_t kEndTimeoutMs = 2000;

// As in the plugin's watchdog (plugins/nccl/pipeline.cc).
constexpr std::chrono::nanoseconds kSoon = std::chrono::microseconds(50);
constexpr std::chrono::nanoseconds kLeastRest = std::chrono::microseconds(10);
constexpr std::chrono::nanoseconds kMostRest = std::chrono::microseconds(500);
constexpr int64_t kHealthNs = 100'000'000;

void Rest(std::chrono::nanoseconds waited) {
  std::this_thread::sleep_for(std::clamp(waited / 16, kLeastRest, kMostRest));
}

Status Late(const char* what, int64_t timeout_ms) {
  return Status::Error(StatusCode::kTimeout,
                       "%s did not end within %lld ms: look for what the other ranks say", what,
                       static_cast<long long>(timeout_ms));
}

double Microseconds(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1000;
}

}  // namespace

Result<std::unique_ptr<PlainNccl>> PlainNccl::Create(Host& host,
                                                     std::shared_ptr<const nccl::Library> library,
                                                     int max_ctas) {
  ENGINE_ASSIGN_OR_RETURN(nccl::GpuStream stream, nccl::GpuStream::Create());
  std::unique_ptr<PlainNccl> plain(new PlainNccl(std::move(library), std::move(stream)));
  ENGINE_RETURN_IF_ERROR(plain->Begin(host, max_ctas));
  return plain;
}

Status PlainNccl::Begin(Host& host, int max_ctas) {
  const RankInfo ranks = host.rank_info();
  ENGINE_RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming), "making an event"));
  ncclUniqueId id{};
  if (ranks.rank == 0) {
    ENGINE_RETURN_IF_ERROR(library_->ToStatus(call_.GetUniqueId(&id), "making an id", nullptr));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(id.internal);
    ENGINE_RETURN_IF_ERROR(host.StoreSet("plain/id", {bytes, sizeof(id.internal)}));
  } else {
    std::string text;
    ENGINE_RETURN_IF_ERROR(host.StoreGetString("plain/id", kMeetingTimeoutMs, &text));
    if (text.size() != sizeof(id.internal)) {
      return Status::Error(StatusCode::kRendezvous, "rank 0 left an id of %zu bytes", text.size());
    }
    std::memcpy(id.internal, text.data(), text.size());
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  return Settle(call_.CommInitRankConfig(&comm_, ranks.world_size, id, ranks.rank, &config),
                "connecting the GPUs of all ranks", kMeetingTimeoutMs);
}

PlainNccl::~PlainNccl() {
  if (comm_ != nullptr && !End().ok()) (void)call_.CommAbort(comm_);
  if (memory_ != nullptr) (void)call_.MemFree(memory_);
  if (end_ != nullptr) (void)cudaEventDestroy(end_);
}

Status PlainNccl::End() {
  if (registration_ != nullptr) {
    ENGINE_RETURN_IF_ERROR(
        Settle(call_.CommDeregister(comm_, registration_), "forgetting memory", kEndTimeoutMs));
  }
  ENGINE_RETURN_IF_ERROR(Settle(call_.CommFinalize(comm_), "the end", kEndTimeoutMs));
  (void)call_.CommDestroy(comm_);
  return {};
}

Status PlainNccl::Settle(ncclResult_t result, const char* what, int64_t timeout_ms) {
  const int64_t start_ns = MonotonicNs();
  while (result == ncclInProgress) {
    const std::chrono::nanoseconds waited(MonotonicNs() - start_ns);
    if (waited > std::chrono::milliseconds(timeout_ms)) return Late(what, timeout_ms);
    waited < kSoon ? (void)sched_yield() : Rest(waited);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = call_.CommGetAsyncError(comm_, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  return library_->ToStatus(result, what, comm_);
}

Result<float*> PlainNccl::Register(size_t size_bytes) {
  if (call_.MemAlloc == nullptr || call_.MemFree == nullptr || call_.CommRegister == nullptr ||
      call_.CommDeregister == nullptr || call_.MemAlloc(&memory_, size_bytes) != ncclSuccess) {
    (void)cudaGetLastError();
    memory_ = nullptr;
    return nullptr;
  }
  ENGINE_RETURN_IF_ERROR(Settle(call_.CommRegister(comm_, memory_, size_bytes, &registration_),
                                "registering memory", kTransferTimeoutMs));
  return static_cast<float*>(memory_);
}

Result<CallTime> PlainNccl::AllReduce(float* data, int64_t count) {
  const int64_t start_ns = MonotonicNs();
  const ncclResult_t begun = call_.AllReduce(data, data, static_cast<size_t>(count), ncclFloat32,
                                             ncclSum, comm_, stream_.get());
  const bool taken = begun == ncclSuccess;
  if (taken) ENGINE_RETURN_IF_ERROR(ToStatus(cudaEventRecord(end_, stream_.get()), "an event"));
  const int64_t returned_ns = MonotonicNs();
  if (!taken) {
    ENGINE_RETURN_IF_ERROR(Settle(begun, "ncclAllReduce", kTransferTimeoutMs));
    ENGINE_RETURN_IF_ERROR(ToStatus(cudaEventRecord(end_, stream_.get()), "an event"));
  }
  ENGINE_RETURN_IF_ERROR(AwaitEvent(start_ns));
  return CallTime{Microseconds(start_ns, returned_ns), Microseconds(start_ns, MonotonicNs())};
}

Status PlainNccl::AwaitEvent(int64_t start_ns) {
  int64_t next_health_ns = start_ns + kHealthNs;
  for (;;) {
    const cudaError_t state = cudaEventQuery(end_);
    if (state != cudaErrorNotReady) return ToStatus(state, "an all-reduce");
    const int64_t now_ns = MonotonicNs();
    const std::chrono::nanoseconds waited(now_ns - start_ns);
    if (waited > std::chrono::milliseconds(kTransferTimeoutMs)) {
      return Late("an all-reduce", kTransferTimeoutMs);
    }
    if (now_ns > next_health_ns) {
      ncclResult_t health = ncclSuccess;
      (void)call_.CommGetAsyncError(comm_, &health);
      ENGINE_RETURN_IF_ERROR(library_->ToStatus(health, "an all-reduce", comm_));
      next_health_ns = now_ns + kHealthNs;
    }
    Rest(waited);
  }
}

Result<std::unique_ptr<PluginNccl>> PluginNccl::Create(Host& host,
                                                       const test::PluginUnderTest& plugin,
                                                       int max_ctas) {
  ENGINE_ASSIGN_OR_RETURN(auto communicator, plugin.Create<Communicator>(
                                                 host, {{"max_ctas", std::to_string(max_ctas)}}));
  return std::unique_ptr<PluginNccl>(new PluginNccl(std::move(communicator)));
}

Result<float*> PluginNccl::Register(size_t size_bytes) {
  auto* const memory = static_cast<SharedMemory*>(communicator_->Query(kSharedMemoryId));
  if (memory == nullptr) return nullptr;
  void* data = nullptr;
  ENGINE_RETURN_IF_ERROR(memory->Allocate(size_bytes, &data));
  return static_cast<float*>(data);
}

Result<CallTime> PluginNccl::AllReduce(float* data, int64_t count) {
  const Transfer transfer{.send = data,
                          .recv = data,
                          .count = count,
                          .sequence = sequence_++,
                          .timeout_ms = kTransferTimeoutMs};
  Work* work = nullptr;
  const int64_t start_ns = MonotonicNs();
  ENGINE_RETURN_IF_ERROR(communicator_->Submit(transfer, &work));
  const int64_t returned_ns = MonotonicNs();
  const Status status = work->WaitHost(kTransferTimeoutMs + 5000);
  work->Release();
  const int64_t end_ns = MonotonicNs();
  ENGINE_RETURN_IF_ERROR(status);
  return CallTime{Microseconds(start_ns, returned_ns), Microseconds(start_ns, end_ns)};
}

}  // namespace engine::bench
