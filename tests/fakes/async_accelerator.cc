#include "tests/fakes/async_accelerator.h"

#include <cstdlib>
#include <cstring>

namespace engine::test {
namespace {

constexpr int64_t kFreeTimeoutMs = 60000;
constexpr int kGarbage = 0xff;  // NaN as float

class AsyncEvent final : public Event {
 public:
  Status WaitHost(int64_t timeout_ms) noexcept override {
    const std::shared_ptr<AsyncPoint> point = Point();
    return point == nullptr ? Status() : point->Wait(timeout_ms);
  }
  void* native() noexcept override { return this; }

  std::shared_ptr<AsyncPoint> Point() const {
    const std::lock_guard lock(mutex_);
    return point_;
  }
  void Set(std::shared_ptr<AsyncPoint> point) {
    const std::lock_guard lock(mutex_);
    point_ = std::move(point);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<AsyncPoint> point_;  // null: never recorded
};

Status Misuse(const char* what) {
  return Status::Error(StatusCode::kInternal, "%s while the stream is recorded", what);
}

Status QueueOn(Stream* stream, AsyncStream::Work work) {
  return static_cast<AsyncStream*>(stream)->Queue(std::move(work));
}

}  // namespace

class AsyncRecording final : public Recording {
 public:
  AsyncRecording(AsyncAccelerator& device, std::vector<AsyncStream::Work> work)
      : device_(device),
        work_(std::make_shared<const std::vector<AsyncStream::Work>>(std::move(work))) {}

  Status Launch(Stream* stream) noexcept override {
    ++device_.launches_;
    return QueueOn(stream, [work = work_]() -> Status {
      for (const AsyncStream::Work& one : *work) ENGINE_RETURN_IF_ERROR(one());
      return {};
    });
  }

 private:
  AsyncAccelerator& device_;
  const std::shared_ptr<const std::vector<AsyncStream::Work>> work_;
};

void AsyncPoint::Reach(const Status& status) {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  status_ = status;
  changed_.notify_all();
}

Status AsyncPoint::Wait(int64_t timeout_ms) const {
  std::unique_lock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  if (changed_.wait_until(lock, deadline, [this] { return reached_; })) return status_;
  return Status::Error(StatusCode::kTimeout, "the device has not come here within %lld ms",
                       static_cast<long long>(timeout_ms));
}

AsyncStream::AsyncStream(AsyncAccelerator& device, const AsyncSettings& settings)
    : device_(device), max_delay_us_(settings.max_delay_us), random_(settings.seed) {
  thread_ = std::thread([this] { Loop(); });
}

AsyncStream::~AsyncStream() {
  {
    const std::lock_guard lock(device_.mutex_);
    device_.streams_.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void AsyncStream::Loop() {
  std::uniform_int_distribution<int64_t> delay_us(0, max_delay_us_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    device_.BeforeWork();
    const int64_t delay = delay_us(random_);
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    Status status = work();
    lock.lock();
    if (status_.ok()) status_ = std::move(status);
  }
}

Status AsyncStream::Queue(Work work) {
  const std::lock_guard lock(mutex_);
  if (is_recorded_) {
    if (recorder_ != std::this_thread::get_id()) return Misuse("work of another thread");
    recorded_.push_back(std::move(work));
    return {};
  }
  queue_.push_back([this, work = std::move(work)]() -> Status {
    {
      const std::lock_guard guard(mutex_);
      if (!status_.ok()) return {};
    }
    return work();
  });
  changed_.notify_one();
  return {};
}

Status AsyncStream::Mark(std::shared_ptr<AsyncPoint>* out) {
  const std::lock_guard lock(mutex_);
  if (is_recorded_) return Misuse("a mark");
  auto point = std::make_shared<AsyncPoint>();
  *out = point;
  queue_.push_back([this, point]() -> Status {
    Status status;
    {
      const std::lock_guard guard(mutex_);
      status = status_;
    }
    point->Reach(status);
    return {};
  });
  changed_.notify_one();
  return {};
}

Status AsyncStream::Record(Event* event) noexcept {
  std::shared_ptr<AsyncPoint> point;
  ENGINE_RETURN_IF_ERROR(Mark(&point));
  static_cast<AsyncEvent*>(event)->Set(std::move(point));
  return {};
}

Status AsyncStream::Wait(Event* event) noexcept {
  const auto point = static_cast<AsyncEvent*>(event)->Point();
  if (point == nullptr) return {};
  return Queue([point] { return point->Wait(kFreeTimeoutMs); });
}

Status AsyncStream::Synchronize(int64_t timeout_ms) noexcept {
  std::shared_ptr<AsyncPoint> point;
  ENGINE_RETURN_IF_ERROR(Mark(&point));
  return point->Wait(timeout_ms);
}

Status AsyncStream::BeginRecording() {
  const std::lock_guard lock(mutex_);
  if (is_recorded_) return Misuse("a second recording");
  is_recorded_ = true;
  recorder_ = std::this_thread::get_id();
  recorded_.clear();
  return {};
}

Status AsyncStream::EndRecording(std::vector<Work>* out) {
  const std::lock_guard lock(mutex_);
  if (!is_recorded_) return Status::Error(StatusCode::kInternal, "no recording has begun");
  is_recorded_ = false;
  *out = std::move(recorded_);
  return {};
}

AsyncAccelerator::~AsyncAccelerator() {
  ENGINE_CHECK(allocations_ == 0 && pinned_.empty() && streams_.empty(),
               "%zu allocations, %zu pinned ones and %zu streams are left", allocations_,
               pinned_.size(), streams_.size());
}

void* AsyncAccelerator::Query(std::string_view id) noexcept {
  return id == kAcceleratorId ? static_cast<Accelerator*>(this) : nullptr;
}

Status AsyncAccelerator::Allocate(size_t size_bytes, void** out) noexcept {
  const size_t rounded = size_bytes / 64 * 64 + 64;
  void* const memory = std::aligned_alloc(64, rounded);
  ENGINE_CHECK(memory != nullptr, "%zu bytes", rounded);
  std::memset(memory, kGarbage, rounded);
  *out = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) | kDeviceBit);
  const std::lock_guard lock(mutex_);
  ++allocations_;
  return {};
}

void AsyncAccelerator::Free(void* memory) noexcept {
  if (memory == nullptr) return;
  ENGINE_CHECK(IsOnDevice(memory), "%p is no memory of the device", memory);
  WaitForStreams();
  std::free(OnDevice(memory));
  const std::lock_guard lock(mutex_);
  --allocations_;
}

// Streams come and go on the thread that frees memory.
void AsyncAccelerator::WaitForStreams() {
  std::vector<AsyncStream*> streams;
  {
    const std::lock_guard lock(mutex_);
    streams.assign(streams_.begin(), streams_.end());
  }
  for (AsyncStream* stream : streams) {
    const Status status = stream->Synchronize(kFreeTimeoutMs);
    ENGINE_CHECK(status.code() != StatusCode::kTimeout, "memory is freed that is in use");
  }
}

Status AsyncAccelerator::Copy(void* target, const void* source, size_t size_bytes,
                              Stream* stream) noexcept {
  if (size_bytes == 0) return {};
  if (IsOnDevice(source) || IsPinned(source)) {
    return QueueOn(stream, [=]() -> Status {
      std::memmove(OnDevice(target), OnDevice(source), size_bytes);
      return {};
    });
  }
  {
    auto* const queue = static_cast<AsyncStream*>(stream);
    const std::lock_guard lock(queue->mutex_);
    if (queue->is_recorded_) return Misuse("a copy from memory that is not pinned");
  }
  const auto* bytes = static_cast<const char*>(source);
  return QueueOn(stream,
                 [target, taken = std::vector<char>(bytes, bytes + size_bytes)]() -> Status {
                   std::memcpy(OnDevice(target), taken.data(), taken.size());
                   return {};
                 });
}

Status AsyncAccelerator::Zero(void* target, size_t size_bytes, Stream* stream) noexcept {
  return QueueOn(stream, [=]() -> Status {
    std::memset(OnDevice(target), 0, size_bytes);
    return {};
  });
}

Status AsyncAccelerator::CreateStream(Stream** out) noexcept {
  const std::lock_guard lock(mutex_);
  auto* const stream = new AsyncStream(*this, {.max_delay_us = settings_.max_delay_us,
                                               .seed = settings_.seed + 1000 * streams_made_++});
  streams_.insert(stream);
  *out = stream;
  return {};
}

Status AsyncAccelerator::CreateEvent(Event** out) noexcept {
  *out = new AsyncEvent;
  return {};
}

Status AsyncAccelerator::AllocateHost(size_t size_bytes, void** out) noexcept {
  *out = std::malloc(size_bytes);
  ENGINE_CHECK(*out != nullptr, "%zu bytes", size_bytes);
  std::memset(*out, kGarbage, size_bytes);
  const std::lock_guard lock(mutex_);
  pinned_.emplace(reinterpret_cast<uintptr_t>(*out), size_bytes);
  return {};
}

void AsyncAccelerator::FreeHost(void* memory) noexcept {
  if (memory == nullptr) return;
  WaitForStreams();
  {
    const std::lock_guard lock(mutex_);
    ENGINE_CHECK(pinned_.erase(reinterpret_cast<uintptr_t>(memory)) == 1, "%p is not pinned",
                 memory);
  }
  std::free(memory);
}

bool AsyncAccelerator::IsPinned(const void* address) const {
  const std::lock_guard lock(mutex_);
  const auto place = reinterpret_cast<uintptr_t>(address);
  const auto next = pinned_.upper_bound(place);
  if (next == pinned_.begin()) return false;
  const auto found = std::prev(next);
  return place < found->first + found->second;
}

Status AsyncAccelerator::BeginRecording(Stream* stream) noexcept {
  return static_cast<AsyncStream*>(stream)->BeginRecording();
}

Status AsyncAccelerator::EndRecording(Stream* stream, Recording** out) noexcept {
  std::vector<AsyncStream::Work> work;
  ENGINE_RETURN_IF_ERROR(static_cast<AsyncStream*>(stream)->EndRecording(&work));
  *out = new AsyncRecording(*this, std::move(work));
  return {};
}

Status AsyncAccelerator::Fault() noexcept {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void AsyncAccelerator::SetFault(const Status& fault) {
  const std::lock_guard lock(mutex_);
  if (fault_.ok()) fault_ = fault;
}

void AsyncAccelerator::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

void AsyncAccelerator::Resume() {
  const std::lock_guard lock(mutex_);
  stopped_ = false;
  resumed_.notify_all();
}

void AsyncAccelerator::BeforeWork() {
  std::unique_lock lock(mutex_);
  resumed_.wait(lock, [this] { return !stopped_; });
}

void AsyncAccelerator::AddWriters(const std::vector<const void*>& addresses) {
  const std::lock_guard lock(mutex_);
  for (const void* address : addresses) {
    writers_.insert(reinterpret_cast<uintptr_t>(OnDevice(address)));
  }
}

void AsyncAccelerator::RemoveWriters(const std::vector<const void*>& addresses) {
  const std::lock_guard lock(mutex_);
  for (const void* address : addresses) {
    const auto found = writers_.find(reinterpret_cast<uintptr_t>(OnDevice(address)));
    if (found != writers_.end()) writers_.erase(found);  // work of a recording is done many times
  }
}

bool AsyncAccelerator::IsWrittenLater(const void* begin, size_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<uintptr_t>(OnDevice(begin));
  const auto found = writers_.lower_bound(first);
  return found != writers_.end() && *found < first + size_bytes;
}

}  // namespace engine::test
