// What one process has of the emulated runtime: its devices, streams, events and memory. One
// instance, never destroyed: threads of streams outlive main.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/emulated_cuda/cudart/block.h"
#include "tests/emulated_cuda/cudart/faults.h"
#include "tests/emulated_cuda/cudart/graph.h"
#include "tests/emulated_cuda/cudart/memory.h"
#include "tests/emulated_cuda/cudart/order.h"
#include "tests/emulated_cuda/cudart/stream.h"

struct CUstream_st {
  int device = 0;
  std::shared_ptr<emulated_cuda::Queue> queue;
  // Guarded by the mutex of the process:
  std::shared_ptr<emulated_cuda::Capture> capture;
  bool began_capture = false;
  std::vector<size_t> tips;  // what the next node comes after
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  // Guarded by the mutex of the process:
  std::shared_ptr<emulated_cuda::Point> point;  // null: never recorded
  std::shared_ptr<emulated_cuda::Capture> capture;
  std::vector<size_t> tips;
};

struct CUgraph_st : emulated_cuda::Graph {};
struct CUgraphExec_st {
  std::shared_ptr<emulated_cuda::Executable> executable;
};
struct CUmemPoolHandle_st {
  int device = 0;
};

namespace emulated_cuda {

class Process {
 public:
  static Process& Get();

  const Order order;
  const int device_count;
  Faults faults;
  Memory memory;
  std::vector<DeviceState> devices;

  // Null for a stream that does not exist (any more). Null, cudaStreamLegacy: the default stream of
  // the current device.
  std::shared_ptr<CUstream_st> Find(cudaStream_t stream);
  // Of the kind that neither waits for the default stream nor is waited for; others are not emulated.
  cudaError_t CreateStream(unsigned flags, cudaStream_t* out);
  cudaError_t DestroyStream(cudaStream_t stream);

  // Queues or records.
  cudaError_t Submit(cudaStream_t stream, Task task);
  // Waits on the host for all work so far.
  cudaError_t Synchronize(cudaStream_t stream);
  cudaError_t SynchronizeDevice(int device);
  cudaError_t Query(cudaStream_t stream);
  cudaError_t Record(cudaEvent_t event, cudaStream_t stream);
  cudaError_t WaitEvent(cudaStream_t stream, cudaEvent_t event);
  // What an event stands for; null: it was never recorded. cudaErrorCapturedEvent.
  cudaError_t PointOf(cudaEvent_t event, std::shared_ptr<Point>* out);

  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(cudaStream_t stream, Graph* out);
  cudaError_t IsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* out);
  // Whether the stream is recorded; its recording fails then, for a call that cannot be recorded.
  bool FailCapture(cudaStream_t stream);
  // Before a call that may not be made while a stream is recorded: an error, and the recording
  // fails too.
  cudaError_t RefuseInCapture();

  // A block that nobody else uses, with the fibers of earlier ones.
  std::unique_ptr<Block> TakeBlock();
  void GiveBlock(std::unique_ptr<Block> block);

 private:
  Process();

  std::shared_ptr<CUstream_st> FindLocked(cudaStream_t stream);
  void AddNode(CUstream_st& stream, Task task);
  cudaError_t Join(CUstream_st& stream, CUevent_st& event);
  std::vector<std::shared_ptr<CUstream_st>> StreamsIn(const Capture& capture);

  std::mutex mutex_;  // guards the rest
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> streams_;
  std::vector<std::shared_ptr<CUstream_st>> legacy_;  // per device
  std::vector<std::unique_ptr<Block>> blocks_;
};

// At the start of a function of the runtime that needs no device: the error of a fault.
cudaError_t EnterWithoutDevice(const char* function);
// At the start of the others: the error that this call is to give because of a
// fault, an earlier failure of the device, or the end of the process.
cudaError_t Enter(const char* function);
// At its end: keeps an error for cudaGetLastError.
cudaError_t Leave(cudaError_t error);
cudaError_t LastError();  // forgets it

int& CurrentDevice();

}  // namespace emulated_cuda

#define EMULATED_CUDA_ENTER()                                                   \
  do {                                                                          \
    const cudaError_t enter_error = ::emulated_cuda::Enter(__func__);           \
    if (enter_error != cudaSuccess) return ::emulated_cuda::Leave(enter_error); \
  } while (false)
