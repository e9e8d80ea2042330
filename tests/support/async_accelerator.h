// An accelerator without hardware: its memory is host memory that the host cannot reach, and what
// is asked of it is done later, on one thread per stream, in the order of the stream.
//
// Addresses in its memory have a bit set that no address of a process has: the host that reads or
// writes through one dies, and only what runs on a stream turns them into real ones (OnDevice). So
// a test with this device also shows that nothing forgets where memory lies. It says nothing of any
// real device.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/device.h"
#include "engine/ext/accelerator.h"

namespace engine::test {

constexpr uintptr_t kDeviceBit = uintptr_t{1} << 62;

inline bool IsOnDevice(const void* address) {
  return (reinterpret_cast<uintptr_t>(address) & kDeviceBit) != 0;
}

// The real address of device memory; of host memory its own, and null of null.
template <typename T>
T* OnDevice(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) & ~kDeviceBit);
}

struct AsyncSettings {
  int64_t max_delay_us = 0;  // before each piece of work: at random, up to this
  uint32_t seed = 1;
};

// A point in the work of a stream.
class AsyncPoint {
 public:
  void Reach(const Status& status);
  // kTimeout if it is not reached, else the state of its stream there.
  Status Wait(int64_t timeout_ms) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;  // guarded by mutex_, as status_
  Status status_;
};

class AsyncAccelerator;

// What streams record together: work, and what each piece comes after. A stream that waits for an
// event of a recording is recorded from then on, and must be waited for before the recording ends.
struct AsyncCapture {
  using Work = std::function<Status()>;
  struct Node {
    Work work;
    std::vector<size_t> after;
  };
  // A place in a recording; none: no recording.
  struct Place {
    std::shared_ptr<AsyncCapture> capture;
    std::vector<size_t> after;
  };

  // Whether every one of `places` comes before one of `tips`, or is one.
  bool AreBefore(const std::vector<size_t>& places, const std::vector<size_t>& tips) const;

  // Of the thread that records.
  std::thread::id recorder;
  std::vector<Node> nodes;
  bool ended = false;
};

// After work that failed nothing more is done, and every later point has that error.
class AsyncStream final : public StreamBase {
 public:
  using Work = std::function<Status()>;

  AsyncStream(AsyncAccelerator& device, const AsyncSettings& settings);
  ~AsyncStream() override;  // does what is queued

  Status Record(Event* event) noexcept override;
  Status Wait(Event* event) noexcept override;
  Status Synchronize(int64_t timeout_ms) noexcept override;
  void* native() noexcept override { return this; }

  // kInternal from another thread than the one that records this stream.
  Status Queue(Work work);
  // The end of what is queued. kInternal while it is recorded.
  Status Mark(std::shared_ptr<AsyncPoint>* out);

  // The end of what is recorded.
  AsyncCapture::Place Tip();
  // What is recorded from now on comes after `place` of its recording.
  Status Join(const AsyncCapture::Place& place);

 private:
  friend class AsyncAccelerator;
  void Loop();
  Status BeginRecording();

  AsyncAccelerator& device_;
  const int64_t max_delay_us_;
  std::mt19937 random_;  // of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;  // guarded by mutex_, as all below
  bool stop_ = false;
  AsyncCapture::Place tip_;
  Status status_;       // of the thread
  std::thread thread_;  // last: uses all of the above
};

// FlatMath in plain loops. It has the kernels of our optimizers and hooks.
class AsyncMath final : public FlatMathBase {
 public:
  explicit AsyncMath(AsyncAccelerator& device) : device_(device) {}
  FlatKernel* FindKernel(std::string_view name) noexcept override;
  Status FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                      Stream* stream) noexcept override;
  Status Convert(const void* source, DType from, void* target, DType to, int64_t count,
                 Stream* stream) noexcept override;
  Status Add(float* target, const float* source, int64_t count, Stream* stream) noexcept override;

 private:
  struct Kernel final : FlatKernelBase {
    Kernel(AsyncMath& of, std::string_view called) : math(of), name(called) {}
    Status Run(const FlatCall& call) noexcept override;
    AsyncMath& math;
    const std::string_view name;
  };

  AsyncAccelerator& device_;
  Kernel kernels_[5] = {{*this, "sgd"},
                        {*this, "adamw"},
                        {*this, "sum_of_squares"},
                        {*this, "clip_norm"},
                        {*this, "clip_value"}};
};

class AsyncAccelerator final : public DeviceBase, public AcceleratorBase {
 public:
  explicit AsyncAccelerator(const AsyncSettings& settings = {})
      : settings_(settings), math_(*this) {}
  ~AsyncAccelerator() override;  // aborts the process if memory was not freed

  void* Query(std::string_view id) noexcept override;
  const char* type() const noexcept override { return "async"; }
  Status Allocate(size_t size_bytes, void** out) noexcept override;
  void Free(void* memory) noexcept override;  // waits for all streams
  Status Copy(void* target, const void* source, size_t size_bytes,
              Stream* stream) noexcept override;
  Status Zero(void* target, size_t size_bytes, Stream* stream) noexcept override;
  Status CreateStream(Stream** out) noexcept override;
  Status CreateEvent(Event** out) noexcept override;

  int32_t ordinal() const noexcept override { return 0; }
  FlatMath& math() noexcept override { return math_; }
  Status AllocateHost(size_t size_bytes, void** out) noexcept override;
  void FreeHost(void* memory) noexcept override;
  Status BeginRecording(Stream* stream) noexcept override;
  Status EndRecording(Stream* stream, Recording** out) noexcept override;
  Status Fault() noexcept override;

  // [any-thread], as all below.
  void SetFault(const Status& fault);

  // No work begins while it is stopped.
  void Stop();
  void Resume();

  // What is queued and not done yet writes to these addresses: for IsWrittenLater.
  void AddWriters(const std::vector<const void*>& addresses);
  void RemoveWriters(const std::vector<const void*>& addresses);
  // Whether something that is queued writes to one of the bytes.
  bool IsWrittenLater(const void* begin, size_t size_bytes) const;

  // Recordings that were launched, and conversions that were queued.
  int launches() const { return launches_.load(); }
  int conversions() const { return conversions_.load(); }
  void CountConversion() { ++conversions_; }

 private:
  friend class AsyncStream;
  friend class AsyncRecording;
  void BeforeWork();
  bool IsPinned(const void* address) const;
  void WaitForStreams();

  const AsyncSettings settings_;
  AsyncMath math_;
  std::atomic<int> launches_{0}, conversions_{0};
  mutable std::mutex mutex_;
  std::condition_variable resumed_;
  bool stopped_ = false;                // guarded by mutex_, as all below
  std::map<uintptr_t, size_t> pinned_;  // sizes
  std::set<AsyncStream*> streams_;
  std::multiset<uintptr_t> writers_;
  size_t allocations_ = 0;
  uint32_t streams_made_ = 0;
  Status fault_;
};

}  // namespace engine::test
