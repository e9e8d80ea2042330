#include "tests/support/async_accelerator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace engine::test {
namespace {

constexpr int64_t kFreeTimeoutMs = 60000;
constexpr int kGarbage = 0xff;  // NaN as float

class AsyncEvent final : public EventBase {
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
    place_ = {};
  }
  AsyncCapture::Place Place() const {
    const std::lock_guard lock(mutex_);
    return place_;
  }
  void Set(AsyncCapture::Place place) {
    const std::lock_guard lock(mutex_);
    place_ = std::move(place);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<AsyncPoint> point_;  // null: never recorded
  AsyncCapture::Place place_;          // of a recording, if it was recorded in one
};

Status Misuse(const char* what) {
  return Status::Error(StatusCode::kInternal, "%s while the stream is recorded", what);
}

Status QueueOn(Stream* stream, AsyncStream::Work work) {
  return static_cast<AsyncStream*>(stream)->Queue(std::move(work));
}

}  // namespace

// Each launch does the work in one of the orders that are allowed, at random.
class AsyncRecording final : public RecordingBase {
 public:
  AsyncRecording(AsyncAccelerator& device, std::shared_ptr<const AsyncCapture> capture)
      : device_(device), capture_(std::move(capture)) {}

  Status Launch(Stream* stream) noexcept override {
    const auto seed = static_cast<uint32_t>(++device_.launches_);
    return QueueOn(stream, [capture = capture_, seed]() -> Status {
      std::mt19937 random(seed);
      std::vector<size_t> left(capture->nodes.size());
      for (size_t i = 0; i < left.size(); ++i) left[i] = i;
      std::vector<bool> done(left.size());
      while (!left.empty()) {
        std::shuffle(left.begin(), left.end(), random);
        const auto next = std::find_if(left.begin(), left.end(), [&](size_t i) {
          const std::vector<size_t>& after = capture->nodes[i].after;
          return std::all_of(after.begin(), after.end(), [&](size_t j) { return done[j]; });
        });
        done[*next] = true;
        ENGINE_RETURN_IF_ERROR(capture->nodes[*next].work());
        left.erase(next);
      }
      return {};
    });
  }

 private:
  AsyncAccelerator& device_;
  const std::shared_ptr<const AsyncCapture> capture_;
};

bool AsyncCapture::AreBefore(const std::vector<size_t>& places,
                             const std::vector<size_t>& tips) const {
  std::set<size_t> before;
  std::vector<size_t> open = tips;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return std::all_of(places.begin(), places.end(), [&](size_t i) { return before.count(i) > 0; });
}

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
    // Most work is done at once: falling asleep takes longer than all else here.
    const int64_t delay = random_() % 4 == 0 ? delay_us(random_) : 0;
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    Status status = work();
    lock.lock();
    if (status_.ok()) status_ = std::move(status);
  }
}

Status AsyncStream::Queue(Work work) {
  const std::lock_guard lock(mutex_);
  if (AsyncCapture* const capture = tip_.capture.get()) {
    if (capture->recorder != std::this_thread::get_id()) return Misuse("work of another thread");
    capture->nodes.push_back({std::move(work), tip_.after});
    tip_.after = {capture->nodes.size() - 1};
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
  if (tip_.capture != nullptr) return Misuse("a mark");
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

AsyncCapture::Place AsyncStream::Tip() {
  const std::lock_guard lock(mutex_);
  return tip_;
}

Status AsyncStream::Join(const AsyncCapture::Place& place) {
  if (place.capture->ended) return Misuse("a wait for a recording that has ended");
  const std::lock_guard lock(mutex_);
  if (tip_.capture != nullptr && tip_.capture != place.capture) return Misuse("another recording");
  tip_.capture = place.capture;
  tip_.after.insert(tip_.after.end(), place.after.begin(), place.after.end());
  return {};
}

Status AsyncStream::Record(Event* event) noexcept {
  if (AsyncCapture::Place tip = Tip(); tip.capture != nullptr) {
    static_cast<AsyncEvent*>(event)->Set(std::move(tip));
    return {};
  }
  std::shared_ptr<AsyncPoint> point;
  ENGINE_RETURN_IF_ERROR(Mark(&point));
  static_cast<AsyncEvent*>(event)->Set(std::move(point));
  return {};
}

Status AsyncStream::Wait(Event* event) noexcept {
  const AsyncCapture::Place place = static_cast<AsyncEvent*>(event)->Place();
  if (place.capture != nullptr) return Join(place);
  if (Tip().capture != nullptr) return Misuse("a wait for what is not recorded");
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
  if (tip_.capture != nullptr) return Misuse("a second recording");
  tip_.capture = std::make_shared<AsyncCapture>();
  tip_.capture->recorder = std::this_thread::get_id();
  return {};
}

AsyncAccelerator::~AsyncAccelerator() {
  ENGINE_CHECK(allocations_ == 0 && pinned_.empty() && streams_.empty(),
               "%zu allocations, %zu pinned ones and %zu streams are left", allocations_,
               pinned_.size(), streams_.size());
}

void* AsyncAccelerator::Query(std::string_view id) noexcept {
  return Offer<Accelerator>(id, this);
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
    if (queue->Tip().capture != nullptr) return Misuse("a copy from memory that is not pinned");
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
  const AsyncCapture::Place end = static_cast<AsyncStream*>(stream)->Tip();
  if (end.capture == nullptr) return Misuse("the end of none");
  end.capture->ended = true;
  Status status;
  const std::lock_guard lock(mutex_);
  for (AsyncStream* other : streams_) {
    if (other->Tip().capture != end.capture) continue;
    const AsyncCapture::Place tip = std::exchange(other->tip_, {});
    if (!end.capture->AreBefore(tip.after, end.after)) status = Misuse("a stream that goes on");
  }
  if (status.ok()) *out = new AsyncRecording(*this, end.capture);
  return status;
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
