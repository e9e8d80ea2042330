// Streams, events and recordings.
#include <memory>

#include "tests/emulated_cuda/cudart/process.h"
#include "tests/emulated_cuda/runtime.h"

using emulated_cuda::CurrentDevice;
using emulated_cuda::Executable;
using emulated_cuda::Leave;
using emulated_cuda::Point;
using emulated_cuda::Process;

namespace {

// Calls destroy when nobody can call run any more.
class Work {
 public:
  explicit Work(const EmulatedCudaWork& work) : work_(work) {}
  ~Work() {
    if (work_.destroy) work_.destroy(work_.state);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  cudaError_t Run() { return work_.run(work_.state); }

 private:
  const EmulatedCudaWork work_;
};

cudaError_t LaunchExecutable(Executable& executable) {
  std::lock_guard lock(executable.running);
  for (const auto& task : executable.tasks) {
    if (const cudaError_t error = (*task)()) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().CreateStream(flags, out));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().CreateStream(flags, out));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().DestroyStream(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().Synchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().Query(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().WaitEvent(stream, event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  EMULATED_CUDA_ENTER();
  *out = new CUevent_st;
  (*out)->device = CurrentDevice();
  (*out)->flags = flags;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* out) {
  EMULATED_CUDA_ENTER();
  return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  EMULATED_CUDA_ENTER();
  if (!event) return Leave(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().Record(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  EMULATED_CUDA_ENTER();
  std::shared_ptr<Point> point;
  if (const cudaError_t error = Process::Get().PointOf(event, &point)) return Leave(error);
  return Leave(!point || point->reached() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  EMULATED_CUDA_ENTER();
  std::shared_ptr<Point> point;
  if (const cudaError_t error = Process::Get().PointOf(event, &point)) return Leave(error);
  if (point) point->Wait();
  const auto device = static_cast<size_t>(event->device);
  return Leave(static_cast<cudaError_t>(Process::Get().devices[device].error.load()));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  EMULATED_CUDA_ENTER();
  std::shared_ptr<Point> from, to;
  if (const cudaError_t error = Process::Get().PointOf(start, &from)) return Leave(error);
  if (const cudaError_t error = Process::Get().PointOf(end, &to)) return Leave(error);
  const bool timed = ((start->flags | end->flags) & cudaEventDisableTiming) == 0;
  if (!from || !to || !timed) return Leave(cudaErrorInvalidResourceHandle);
  if (!from->reached() || !to->reached()) return Leave(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->when() - from->when()).count();
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().Submit(stream, [=] {
    function(data);
    return cudaSuccess;
  }));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().BeginCapture(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  EMULATED_CUDA_ENTER();
  auto graph = std::make_unique<CUgraph_st>();
  *out = nullptr;
  const cudaError_t error = Process::Get().EndCapture(stream, graph.get());
  if (error == cudaSuccess) *out = graph.release();
  return Leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  EMULATED_CUDA_ENTER();
  return Leave(Process::Get().IsCapturing(stream, status));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  EMULATED_CUDA_ENTER();
  if (!graph) return Leave(cudaErrorInvalidValue);
  auto executable = std::make_shared<Executable>();
  executable->tasks = graph->InOrder(Process::Get().order);
  *out = new CUgraphExec_st{std::move(executable)};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  if (!graph) return Leave(cudaErrorInvalidValue);
  return Leave(Process::Get().Submit(
      stream, [executable = graph->executable] { return LaunchExecutable(*executable); }));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  EMULATED_CUDA_ENTER();
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  EMULATED_CUDA_ENTER();
  delete graph;
  return cudaSuccess;
}

cudaError_t emulated_cuda_enqueue(cudaStream_t stream, EmulatedCudaWork work) {
  auto owned = std::make_shared<Work>(work);
  return Leave(Process::Get().Submit(stream, [owned] { return owned->Run(); }));
}

int emulated_cuda_fault(const char* function) {
  return Process::Get().faults.Next(function);
}
