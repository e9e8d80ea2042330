#include "cuda_device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "cuda_flat_math.h"
#include "cuda_kit/driver.h"
#include "cuda_kit/wait.h"

namespace engine::cuda_ops {

namespace {

constexpr int32_t kLeastCapability = 80;  // asynchronous copies, bfloat16 matrix instructions
constexpr size_t kGranule = 256;
constexpr size_t kLargest = size_t{1} << 46;

constexpr int64_t kMemoryTimeoutMs = 60'000;

// Makes the GPU the current one first: else the runtime would set up the first GPU of the machine
// for a thread that has called it for nothing else.
template <typename Query>
Status Poll(int32_t ordinal, const Query& query, int64_t timeout_ms, const char* what) noexcept {
  CUDA_OPS_RETURN_IF_ERROR(cudaSetDevice(ordinal), "choosing the GPU");
  return cuda_kit::WaitFor(query, timeout_ms, what);
}

}  // namespace

// Memory is allocated and freed in the order of a stream of its own, which at a Free follows all
// others: the memory is given out again when they no longer use it, and the host does not wait.
struct MemoryOrder {
  cudaStream_t stream = nullptr;  // constant after the setup of the device
  std::mutex mutex;
  cudaEvent_t used = nullptr;  // guarded by mutex
  // Guarded by mutex: those of the device, from the default one on.
  std::vector<cudaStream_t> streams = {nullptr};

  ~MemoryOrder() {
    if (used != nullptr) (void)cudaEventDestroy(used);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
  Status Setup() noexcept {
    CUDA_OPS_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    return ToStatus(cudaEventCreateWithFlags(&used, cudaEventDisableTiming), "an event");
  }
  Status Finish(int32_t ordinal) const noexcept {
    return Poll(
        ordinal, [this] { return cudaStreamQuery(stream); }, kMemoryTimeoutMs, "memory of the GPU");
  }
  // With the lock: what is queued from now on comes after all that `other` has to do now.
  void Follow(cudaStream_t other) noexcept {
    if (cudaEventRecord(used, other) == cudaSuccess) (void)cudaStreamWaitEvent(stream, used, 0);
  }
};

// Copies from ordinary host memory to the device that end for the caller when the call returns, and
// for the device later: through a ring of pinned buffers.
class StagingRing {
 public:
  StagingRing() = default;
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Queues the copy on `stream`. Waits only when all buffers are under way. Pinned memory is
  // allocated at the first copies. Not on a stream that is being recorded. [any-thread]
  Status Copy(void* target, const void* source, size_t size_bytes, cudaStream_t stream) noexcept;

 private:
  static constexpr size_t kSlotBytes = size_t{4} << 20;
  static constexpr int kSlots = 4;
  struct Slot {
    void* memory = nullptr;
    cudaEvent_t done = nullptr;  // the last copy from it
  };
  Status Prepare(Slot* slot) noexcept;

  std::mutex mutex_;
  Slot slots_[kSlots];  // guarded by mutex_, as next_
  int next_ = 0;
};

StagingRing::~StagingRing() {
  for (Slot& slot : slots_) {
    if (slot.done != nullptr) (void)cudaEventSynchronize(slot.done);
    if (slot.done != nullptr) (void)cudaEventDestroy(slot.done);
    if (slot.memory != nullptr) (void)cudaFreeHost(slot.memory);
  }
}

// With the mutex. The event says that the device has read the slot: only then is it overwritten.
Status StagingRing::Prepare(Slot* slot) noexcept {
  if (slot->memory == nullptr) {
    CUDA_OPS_RETURN_IF_ERROR(cudaMallocHost(&slot->memory, kSlotBytes), "pinned staging memory");
  }
  if (slot->done == nullptr) {
    CUDA_OPS_RETURN_IF_ERROR(cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming),
                             "an event of the staging memory");
    return {};
  }
  CUDA_OPS_RETURN_IF_ERROR(cudaEventSynchronize(slot->done), "an earlier copy to the device");
  return {};
}

Status StagingRing::Copy(void* target, const void* source, size_t size_bytes,
                         cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t begin = 0; begin < size_bytes; begin += kSlotBytes) {
    const size_t part = std::min(kSlotBytes, size_bytes - begin);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % kSlots;
    ENGINE_RETURN_IF_ERROR(Prepare(&slot));
    std::memcpy(slot.memory, static_cast<const std::byte*>(source) + begin, part);
    CUDA_OPS_RETURN_IF_ERROR(cudaMemcpyAsync(static_cast<std::byte*>(target) + begin, slot.memory,
                                             part, cudaMemcpyHostToDevice, stream),
                             "a copy to the device");
    CUDA_OPS_RETURN_IF_ERROR(cudaEventRecord(slot.done, stream), "a copy to the device");
  }
  return {};
}

namespace {

class CudaEvent final : public EventBase {
 public:
  CudaEvent(cudaEvent_t event, int32_t ordinal) noexcept : event_(event), ordinal_(ordinal) {}
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }
  Status WaitHost(int64_t timeout_ms) noexcept override {
    return Poll(
        ordinal_, [this] { return cudaEventQuery(event_); }, timeout_ms, "work of the GPU");
  }
  void* native() noexcept override { return event_; }

 private:
  const cudaEvent_t event_;
  const int32_t ordinal_;
};

class CudaStream final : public StreamBase {
 public:
  CudaStream(cudaStream_t stream, int32_t ordinal, std::shared_ptr<MemoryOrder> order) noexcept
      : stream_(stream), ordinal_(ordinal), order_(std::move(order)) {
    const std::lock_guard lock(order_->mutex);
    order_->streams.push_back(stream_);
  }
  ~CudaStream() override {
    const std::lock_guard lock(order_->mutex);
    order_->Follow(stream_);
    std::erase(order_->streams, stream_);
    (void)cudaStreamDestroy(stream_);
  }
  Status Record(Event* event) noexcept override {
    return ToStatus(cudaEventRecord(static_cast<cudaEvent_t>(event->native()), stream_),
                    "recording an event");
  }
  Status Wait(Event* event) noexcept override {
    return ToStatus(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event->native()), 0),
                    "waiting for an event");
  }
  Status Synchronize(int64_t timeout_ms) noexcept override {
    return Poll(
        ordinal_, [this] { return cudaStreamQuery(stream_); }, timeout_ms, "work of the GPU");
  }
  void* native() noexcept override { return stream_; }

 private:
  const cudaStream_t stream_;
  const int32_t ordinal_;
  const std::shared_ptr<MemoryOrder> order_;
};

class CudaRecording final : public RecordingBase {
 public:
  explicit CudaRecording(cudaGraphExec_t graph) noexcept : graph_(graph) {}
  ~CudaRecording() override { (void)cudaGraphExecDestroy(graph_); }
  Status Launch(Stream* stream) noexcept override {
    return ToStatus(cudaGraphLaunch(graph_, Native(stream)), "launching a CUDA graph");
  }

 private:
  const cudaGraphExec_t graph_;
};

Status NoMemory(const char* what) noexcept {
  return Status::Error(StatusCode::kResourceExhausted, "no memory for a %s of the GPU", what);
}

template <typename Made, typename Interface, typename... Arguments>
Status Wrap(const char* what, Interface** out, Arguments... arguments) noexcept {
  *out = new (std::nothrow) Made(arguments...);
  return *out != nullptr ? Status() : NoMemory(what);
}

}  // namespace

Status CudaDevice::Create(int32_t ordinal, int32_t local_rank,
                          std::unique_ptr<CudaDevice>* out) noexcept {
  int count = 0;
  ENGINE_RETURN_IF_ERROR(cuda_kit::CountDevices("cuda_ops", "cpu_ops", &count));
  if (ordinal >= count) {
    return Status::Error(StatusCode::kConfig,
                         "cuda_ops { device: %d }: this machine has %d GPU%s; give a number below "
                         "that, or -1 for the local rank's",
                         ordinal, count, count == 1 ? "" : "s");
  }
  out->reset(new (std::nothrow) CudaDevice(ordinal >= 0 ? ordinal : local_rank % count));
  if (*out == nullptr) return NoMemory("description");
  return (*out)->Setup();
}

CudaDevice::CudaDevice(int32_t ordinal) noexcept : ordinal_(ordinal) {}

Status CudaDevice::Setup() noexcept {
  ENGINE_RETURN_IF_ERROR(Use());
  cudaDeviceProp properties{};
  CUDA_OPS_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal_), "asking for the GPU");
  multiprocessors_ = properties.multiProcessorCount;
  capability_ = 10 * properties.major + properties.minor;
  const cuda_kit::Versions versions;
  snprintf(description_, sizeof description_,
           "%.128s (compute capability %d.%d, driver for CUDA %s, runtime %s)", properties.name,
           properties.major, properties.minor, cuda_kit::VersionText(versions.driver).text,
           cuda_kit::VersionText(versions.runtime).text);
  if (capability_ < kLeastCapability) {
    return Status::Error(
        StatusCode::kPlugin,
        "cuda_ops needs a GPU of compute capability 8.0 or later, but device %d is "
        "%s: choose another device, or cpu_ops",
        ordinal_, description_);
  }
  cudaMemPoolProps pool{};
  pool.allocType = cudaMemAllocationTypePinned;
  pool.location = {.type = cudaMemLocationTypeDevice, .id = ordinal_};
  CUDA_OPS_RETURN_IF_ERROR(cudaMemPoolCreate(&arena_, &pool), "the memory pool of the GPU");
  // What was freed stays here for the next one.
  uint64_t kept = UINT64_MAX;
  CUDA_OPS_RETURN_IF_ERROR(cudaMemPoolSetAttribute(arena_, cudaMemPoolAttrReleaseThreshold, &kept),
                           "the memory pool of the GPU");
  order_.reset(new (std::nothrow) MemoryOrder);
  if (order_ == nullptr) return NoMemory("description");
  ENGINE_RETURN_IF_ERROR(order_->Setup());
  void* fault = nullptr;
  CUDA_OPS_RETURN_IF_ERROR(cudaHostAlloc(&fault, sizeof(DeviceFault), cudaHostAllocMapped),
                           "pinned memory");
  fault_host_ = new (fault) DeviceFault;
  CUDA_OPS_RETURN_IF_ERROR(cudaHostGetDevicePointer(&fault, fault_host_, 0), "pinned memory");
  fault_device_ = static_cast<DeviceFault*>(fault);
  staging_.reset(new (std::nothrow) StagingRing);
  math_.reset(new (std::nothrow) CudaFlatMath(*this));
  if (staging_ == nullptr || math_ == nullptr) return NoMemory("description");
  return math_->Setup();
}

CudaDevice::~CudaDevice() {
  (void)Use();
  math_.reset();  // its memory is of the arena, which goes last
  staging_.reset();
  if (order_ != nullptr) (void)order_->Finish(ordinal_);
  if (arena_ != nullptr) (void)cudaMemPoolDestroy(arena_);
  if (fault_host_ != nullptr) (void)cudaFreeHost(fault_host_);
}

Status CudaDevice::WaitFor(cudaEvent_t event, int64_t timeout_ms) const noexcept {
  return Poll(
      ordinal_, [event] { return cudaEventQuery(event); }, timeout_ms, "work of the GPU");
}

Status CudaDevice::Use() const noexcept {
  return ToStatus(cudaSetDevice(ordinal_), "choosing the GPU");
}

void* CudaDevice::Query(std::string_view id) noexcept {
  return Offer<Accelerator>(id, this);
}

// Waits for the memory stream: others do not follow it, and may use the memory at once.
Status CudaDevice::Allocate(size_t size_bytes, void** out) noexcept {
  ENGINE_RETURN_IF_ERROR(Use());
  cudaError_t error = cudaErrorMemoryAllocation;
  if (size_bytes < kLargest) {
    const size_t rounded = (size_bytes / kGranule + 1) * kGranule;
    error = cudaMallocFromPoolAsync(out, rounded, arena_, order_->stream);
    if (error == cudaSuccess) return order_->Finish(ordinal_);
  }
  (void)cudaGetLastError();  // running out of memory is no reason for the next call to fail
  if (error != cudaErrorMemoryAllocation) return ToStatus(error, "allocating memory of the GPU");
  return Status::Error(StatusCode::kResourceExhausted,
                       "cannot allocate %zu bytes of memory of GPU %d, %s; use a smaller model or "
                       "batch",
                       size_bytes, ordinal_, description_);
}

// Under the lock, as the event `used` is recorded and waited for once per stream.
void CudaDevice::Free(void* memory) noexcept {
  if (memory == nullptr) return;
  (void)Use();
  const std::lock_guard lock(order_->mutex);
  for (cudaStream_t stream : order_->streams) order_->Follow(stream);
  (void)cudaFreeAsync(memory, order_->stream);
}

// From ordinary memory by the ring: for such a copy the runtime may wait for the stream first.
Status CudaDevice::Copy(void* target, const void* source, size_t size_bytes,
                        Stream* stream) noexcept {
  if (size_bytes == 0) return {};
  ENGINE_RETURN_IF_ERROR(Use());
  cudaPointerAttributes from{}, to{};
  CUDA_OPS_RETURN_IF_ERROR(cudaPointerGetAttributes(&from, source), "looking at memory");
  CUDA_OPS_RETURN_IF_ERROR(cudaPointerGetAttributes(&to, target), "looking at memory");
  if (from.type == cudaMemoryTypeUnregistered && to.type == cudaMemoryTypeDevice) {
    return staging_->Copy(target, source, size_bytes, Native(stream));
  }
  return ToStatus(cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, Native(stream)),
                  "a copy");
}

Status CudaDevice::Zero(void* target, size_t size_bytes, Stream* stream) noexcept {
  if (size_bytes == 0) return {};
  ENGINE_RETURN_IF_ERROR(Use());
  return ToStatus(cudaMemsetAsync(target, 0, size_bytes, Native(stream)), "zeroing memory");
}

Status CudaDevice::CreateStream(Stream** out) noexcept {
  ENGINE_RETURN_IF_ERROR(Use());
  cudaStream_t stream = nullptr;
  CUDA_OPS_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  return Wrap<CudaStream>("stream", out, stream, ordinal_, order_);
}

Status CudaDevice::CreateEvent(Event** out) noexcept {
  ENGINE_RETURN_IF_ERROR(Use());
  cudaEvent_t event = nullptr;
  CUDA_OPS_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
  return Wrap<CudaEvent>("event", out, event, ordinal_);
}

FlatMath& CudaDevice::math() noexcept {
  return *math_;
}

Status CudaDevice::AllocateHost(size_t size_bytes, void** out) noexcept {
  ENGINE_RETURN_IF_ERROR(Use());
  return ToStatus(cudaMallocHost(out, std::max(size_bytes, kGranule)), "pinned host memory");
}

void CudaDevice::FreeHost(void* memory) noexcept {
  if (memory != nullptr) (void)cudaFreeHost(memory);
}

// Of this thread alone: others may allocate and copy meanwhile, this one may not.
Status CudaDevice::BeginRecording(Stream* stream) noexcept {
  ENGINE_RETURN_IF_ERROR(Use());
  return ToStatus(cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal),
                  "recording a CUDA graph");
}

// An error here, of a recording that something has spoiled, leaves the stream usable again.
Status CudaDevice::EndRecording(Stream* stream, Recording** out) noexcept {
  cudaGraph_t graph = nullptr;
  CUDA_OPS_RETURN_IF_ERROR(cudaStreamEndCapture(Native(stream), &graph), "recording a CUDA graph");
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
  (void)cudaGraphDestroy(graph);
  CUDA_OPS_RETURN_IF_ERROR(error, "making a CUDA graph");
  return Wrap<CudaRecording>("CUDA graph", out, made);
}

// Kernels write `code` last, behind a fence for the system; the host reads it first.
Status CudaDevice::Fault() noexcept {
  const DeviceFault& fault = *fault_host_;
  if (fault.code == DeviceFault::kNone) return {};
  if (fault.code == DeviceFault::kWeight) {
    return Status::Error(
        StatusCode::kBadData,
        "a sample weight of %g at position %lld of its batch; it has to be at least 0",
        static_cast<double>(fault.weight), static_cast<long long>(fault.position));
  }
  return Status::Error(StatusCode::kBadData,
                       "%s %d at position %lld of its batch is outside of [0, %d)",
                       fault.code == DeviceFault::kToken ? "token" : "target", fault.value,
                       static_cast<long long>(fault.position), fault.limit);
}

}  // namespace engine::cuda_ops
