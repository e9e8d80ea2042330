// null: a communicator that moves nothing between ranks. In a world of one that is all there is to
// do; in a larger one it measures what training costs without communication, and the ranks drift
// apart.
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "engine/plugin.h"
#include "kit/accelerator.h"

namespace engine::null {
namespace {

int64_t MonotonicNs() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

class WorkPool;

// Every transfer is done when Submit returns: all that is left of it is when that was.
class DoneWork final : public Work {
 public:
  WorkState state() const noexcept override { return WorkState::kDone; }
  int64_t started_ns() const noexcept override { return started_ns_; }
  Status WaitHost(int64_t) noexcept override { return {}; }
  Status WaitStream(Stream*) noexcept override { return {}; }
  void OnDone(void (*callback)(void* context), void* context) noexcept override {
    callback(context);
  }
  void Release() noexcept override;

 private:
  friend class WorkPool;

  int64_t started_ns_ = 0;
  DoneWork* next_ = nullptr;        // in the pool
  std::shared_ptr<WorkPool> pool_;  // null while in the pool
};

// Works for reuse, so that a step allocates nothing. A caller may release a work after the
// communicator is gone, so every work in use holds its pool.
class WorkPool : public std::enable_shared_from_this<WorkPool> {
 public:
  WorkPool() = default;
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  ~WorkPool() {
    while (first_) delete std::exchange(first_, first_->next_);
  }

  // Null when memory is out.
  DoneWork* Take(int64_t started_ns) noexcept {
    DoneWork* work = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (first_) work = std::exchange(first_, first_->next_);
    }
    if (!work) work = new (std::nothrow) DoneWork;
    if (!work) return nullptr;
    work->started_ns_ = started_ns;
    work->pool_ = shared_from_this();
    return work;
  }

  void Give(DoneWork* work) noexcept {
    const std::lock_guard lock(mutex_);
    work->next_ = std::exchange(first_, work);
  }

 private:
  std::mutex mutex_;
  DoneWork* first_ = nullptr;  // guarded by mutex_
};

void DoneWork::Release() noexcept {
  const std::shared_ptr<WorkPool> pool = std::move(pool_);
  pool->Give(this);
}

// What this rank contributes to its own result: an all-reduce or broadcast gives back `send`, a
// reduce-scatter this rank's slice of it; an all-gather fills this rank's slice of `recv`.
// `device` is null where buffers are host memory.
Status CopyOwn(const Transfer& transfer, const RankInfo& ranks, Device* device) noexcept {
  if (transfer.kind == TransferKind::kBarrier || !transfer.send || !transfer.recv) return {};
  const size_t size_bytes = static_cast<size_t>(transfer.count) * SizeOf(transfer.dtype);
  const size_t own_slice = static_cast<size_t>(ranks.rank) * size_bytes;
  const auto* source = static_cast<const std::byte*>(transfer.send);
  auto* target = static_cast<std::byte*>(transfer.recv);
  if (transfer.kind == TransferKind::kReduceScatter) source += own_slice;
  if (transfer.kind == TransferKind::kAllGather) target += own_slice;
  if (source == target) return {};
  if (!device) {
    std::memcpy(target, source, size_bytes);
    return {};
  }
  ENGINE_RETURN_IF_ERROR(device->Copy(target, source, size_bytes, transfer.stream));
  return transfer.stream ? transfer.stream->Synchronize(transfer.timeout_ms) : Status();
}

class NullCommunicator final : public Communicator {
 public:
  NullCommunicator(const RankInfo& ranks, Device* accelerator)
      : ranks_(ranks), accelerator_(accelerator), pool_(std::make_shared<WorkPool>()) {}

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
                     Bit(TransferKind::kAllGather) | Bit(TransferKind::kBroadcast) |
                     Bit(TransferKind::kBarrier),
            .dtypes = Bit(DType::kFloat32) | Bit(DType::kInt32) | Bit(DType::kUint8) |
                      Bit(DType::kBFloat16) | Bit(DType::kFloat16),
            .ordered = 0,
            .max_in_flight = 0,
            .measures_only = ranks_.world_size > 1,
            .device_memory = 1};
  }

  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
    }
    if (transfer.count < 0 || transfer.timeout_ms <= 0) {
      return Status::Error(
          StatusCode::kInvalidArgument, "transfer with count %lld, timeout_ms %lld",
          static_cast<long long>(transfer.count), static_cast<long long>(transfer.timeout_ms));
    }
    if (!accelerator_ && transfer.stream && transfer.stream->native()) {
      return Status::Error(StatusCode::kUnsupported,
                           "null was made for host memory: copy the data to the host first");
    }
    ENGINE_RETURN_IF_ERROR(CopyOwn(transfer, ranks_, accelerator_));
    DoneWork* const work = pool_->Take(MonotonicNs());
    if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    *out = work;
    return {};
  }

  void Abort(const Status& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = reason;
  }

 private:
  const RankInfo ranks_;
  Device* const accelerator_;  // null: buffers are host memory
  const std::shared_ptr<WorkPool> pool_;
  std::mutex mutex_;
  Status failure_;  // guarded by mutex_
};

Status Create(Host& host, const Options&, Object** out) noexcept {
  try {
    const bool is_accelerator = kit::AcceleratorOf(host) != nullptr;
    *out = new NullCommunicator(host.rank_info(), is_accelerator ? host.device() : nullptr);
    return {};
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for a communicator");
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "null",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "moves nothing: for one rank, or to measure training without communication",
     .create = Create},
    NoOps(), NoOptions());

}  // namespace engine::null
