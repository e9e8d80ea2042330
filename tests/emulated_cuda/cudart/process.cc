#include "tests/emulated_cuda/cudart/process.h"

#include <algorithm>
#include <cstdlib>

#include "tests/emulated_cuda/cudart/fail.h"

namespace emulated_cuda {
namespace {

constexpr int kMaxDevices = 8;

int DeviceCount() {
  const char* text = std::getenv("EMULATED_CUDA_DEVICES");
  if (!text) return 1;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || count < 0 || count > kMaxDevices) {
    Fail("EMULATED_CUDA_DEVICES is '%s': must be 0 to %d", text, kMaxDevices);
  }
  return static_cast<int>(count);
}

const char* FaultText() {
  const char* text = std::getenv("EMULATED_CUDA_FAULT");
  return text ? text : "";
}

// After these a device does nothing any more.
bool IsSticky(int error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout ||
         error == cudaErrorMisalignedAddress || error == cudaErrorLaunchFailure;
}

// The recording fails, and the call that was made in it.
cudaError_t Spoil(Capture& capture, cudaError_t error) {
  capture.failed = true;
  return error;
}

thread_local cudaError_t t_last_error = cudaSuccess;

__attribute__((destructor)) void BeforeExit() {
  StopAllQueues();
}

}  // namespace

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t Enter(const char* function) {
  if (QueuesAreStopped()) return cudaErrorCudartUnloading;
  Process& process = Process::Get();
  const int fault = process.faults.Next(function);
  if (process.device_count == 0) return fault ? cudaError_t(fault) : cudaErrorNoDevice;
  DeviceState& device = process.devices[static_cast<size_t>(CurrentDevice())];
  if (IsSticky(fault)) device.error.store(fault);
  if (fault != 0) return static_cast<cudaError_t>(fault);
  return static_cast<cudaError_t>(device.error.load());
}

cudaError_t EnterWithoutDevice(const char* function) {
  return static_cast<cudaError_t>(Process::Get().faults.Next(function));
}

cudaError_t Leave(cudaError_t error) {
  if (error != cudaSuccess) t_last_error = error;
  return error;
}

cudaError_t LastError() {
  const cudaError_t error = t_last_error;
  if (!IsSticky(error)) t_last_error = cudaSuccess;
  return error;
}

Process& Process::Get() {
  static Process* const process = new Process;
  return *process;
}

Process::Process()
    : order(OrderFromEnvironment()),
      device_count(DeviceCount()),
      faults(FaultText()),
      memory(device_count),
      devices(static_cast<size_t>(device_count)) {
  for (int i = 0; i < device_count; ++i) {
    auto stream = std::make_shared<CUstream_st>();
    stream->device = i;
    stream->queue = std::make_shared<Queue>(&devices[static_cast<size_t>(i)]);
    legacy_.push_back(stream);
  }
}

std::shared_ptr<CUstream_st> Process::Find(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  return FindLocked(stream);
}

std::shared_ptr<CUstream_st> Process::FindLocked(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) {
    return legacy_[static_cast<size_t>(CurrentDevice())];
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

cudaError_t Process::CreateStream(unsigned flags, cudaStream_t* out) {
  if (flags != cudaStreamNonBlocking) Fail("a stream that waits for the default stream is made");
  std::lock_guard lock(mutex_);
  auto stream = std::make_shared<CUstream_st>();
  stream->device = CurrentDevice();
  stream->queue = std::make_shared<Queue>(&devices[static_cast<size_t>(stream->device)]);
  *out = stream.get();
  streams_[*out] = std::move(stream);
  return cudaSuccess;
}

cudaError_t Process::DestroyStream(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return cudaErrorInvalidResourceHandle;
  if (found->second->capture) found->second->capture->failed = true;
  found->second->queue->Close();
  streams_.erase(found);
  return cudaSuccess;
}

cudaError_t Process::Submit(cudaStream_t handle, Task task) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    if (stream->capture->failed) return cudaErrorStreamCaptureInvalidated;
    AddNode(*stream, std::move(task));
    return cudaSuccess;
  }
  stream->queue->Push(std::move(task));
  return cudaSuccess;
}

void Process::AddNode(CUstream_st& stream, Task task) {
  std::vector<Node>& nodes = stream.capture->graph.nodes;
  nodes.push_back({std::make_shared<Task>(std::move(task)), stream.tips});
  stream.tips = {nodes.size() - 1};
}

cudaError_t Process::Synchronize(cudaStream_t handle) {
  std::shared_ptr<Point> point;
  int device = 0;
  {
    std::lock_guard lock(mutex_);
    const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return Spoil(*stream->capture, cudaErrorStreamCaptureUnsupported);
    device = stream->device;
    point = stream->queue->PushPoint();
  }
  point->Wait();
  return static_cast<cudaError_t>(devices[static_cast<size_t>(device)].error.load());
}

cudaError_t Process::SynchronizeDevice(int device) {
  std::vector<std::shared_ptr<Point>> points;
  {
    std::lock_guard lock(mutex_);
    points.push_back(legacy_[static_cast<size_t>(device)]->queue->PushPoint());
    for (const auto& [handle, stream] : streams_) {
      if (stream->device == device) points.push_back(stream->queue->PushPoint());
    }
  }
  for (const auto& point : points) point->Wait();
  return static_cast<cudaError_t>(devices[static_cast<size_t>(device)].error.load());
}

cudaError_t Process::Query(cudaStream_t handle) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) return Spoil(*stream->capture, cudaErrorStreamCaptureUnsupported);
  lock.unlock();
  return stream->queue->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t Process::Record(cudaEvent_t event, cudaStream_t handle) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream || !event || stream->device != event->device) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    if (stream->capture->failed) return cudaErrorStreamCaptureInvalidated;
    event->capture = stream->capture;
    event->tips = stream->tips;
    event->point = nullptr;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->point = stream->queue->PushPoint();
  return cudaSuccess;
}

cudaError_t Process::WaitEvent(cudaStream_t handle, cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream || !event) return cudaErrorInvalidResourceHandle;
  if (event->capture) return Join(*stream, *event);
  // A recording cannot wait for what is outside of it.
  if (stream->capture) return Spoil(*stream->capture, cudaErrorStreamCaptureIsolation);
  if (event->point) stream->queue->PushWait(event->point);
  return cudaSuccess;
}

cudaError_t Process::PointOf(cudaEvent_t event, std::shared_ptr<Point>* out) {
  std::lock_guard lock(mutex_);
  if (!event) return cudaErrorInvalidResourceHandle;
  if (event->capture) return cudaErrorCapturedEvent;
  *out = event->point;
  return cudaSuccess;
}

// A stream that waits for a recorded event is recorded from then on.
cudaError_t Process::Join(CUstream_st& stream, CUevent_st& event) {
  if (stream.capture && stream.capture != event.capture) {
    stream.capture->failed = true;
    return Spoil(*event.capture, cudaErrorStreamCaptureMerge);
  }
  if (StreamsIn(*event.capture).empty()) return cudaErrorCapturedEvent;  // it has ended
  if (event.capture->failed) return cudaErrorStreamCaptureInvalidated;
  stream.capture = event.capture;
  for (const size_t tip : event.tips) {
    if (std::find(stream.tips.begin(), stream.tips.end(), tip) == stream.tips.end()) {
      stream.tips.push_back(tip);
    }
  }
  return cudaSuccess;
}

std::vector<std::shared_ptr<CUstream_st>> Process::StreamsIn(const Capture& capture) {
  std::vector<std::shared_ptr<CUstream_st>> found;
  for (const auto& [handle, stream] : streams_) {
    if (stream->capture.get() == &capture) found.push_back(stream);
  }
  return found;
}

cudaError_t Process::BeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream == legacy_[static_cast<size_t>(stream->device)]) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream->capture) return cudaErrorIllegalState;
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->began_capture = true;
  stream->tips.clear();
  return cudaSuccess;
}

cudaError_t Process::EndCapture(cudaStream_t handle, Graph* out) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> origin = FindLocked(handle);
  if (!origin) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<Capture> capture = origin->capture;
  if (!capture) return cudaErrorIllegalState;
  if (!origin->began_capture) return Spoil(*capture, cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const std::set<size_t> joined = capture->graph.Before(origin->tips);
  cudaError_t result = capture->failed ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  for (const auto& stream : StreamsIn(*capture)) {
    const auto is_joined = [&](size_t tip) { return joined.count(tip) > 0; };
    const bool all = std::all_of(stream->tips.begin(), stream->tips.end(), is_joined);
    if (!all && result == cudaSuccess) result = cudaErrorStreamCaptureUnjoined;
    stream->capture = nullptr;
    stream->tips.clear();
  }
  origin->began_capture = false;
  if (result == cudaSuccess) *out = std::move(capture->graph);
  return result;
}

cudaError_t Process::IsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* out) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *out = !stream->capture          ? cudaStreamCaptureStatusNone
         : stream->capture->failed ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t Process::RefuseInCapture() {
  std::lock_guard lock(mutex_);
  for (const auto& [handle, stream] : streams_) {
    if (!stream->began_capture) continue;
    Capture& capture = *stream->capture;
    const bool mine = capture.thread == std::this_thread::get_id();
    if (capture.mode == cudaStreamCaptureModeGlobal ||
        (capture.mode == cudaStreamCaptureModeThreadLocal && mine)) {
      return Spoil(capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return cudaSuccess;
}

bool Process::FailCapture(cudaStream_t handle) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<CUstream_st> stream = FindLocked(handle);
  if (!stream || !stream->capture) return false;
  stream->capture->failed = true;
  return true;
}

std::unique_ptr<Block> Process::TakeBlock() {
  {
    std::lock_guard lock(mutex_);
    if (!blocks_.empty()) {
      std::unique_ptr<Block> block = std::move(blocks_.back());
      blocks_.pop_back();
      return block;
    }
  }
  return std::make_unique<Block>(order);
}

void Process::GiveBlock(std::unique_ptr<Block> block) {
  std::lock_guard lock(mutex_);
  blocks_.push_back(std::move(block));
}

}  // namespace emulated_cuda
