// A libnccl.so.2 for machines without GPU, for tests: the part of NCCL's interface that the nccl
// plugin calls, over memory of the host and streams of the fake CUDA runtime.
#include <nccl.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "tests/emulated_cuda/nccl/fake_comm.h"

using fake_nccl::Kind;

#define FAKE_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

void SayThatThisIsAFake() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::fprintf(stderr, "fake NCCL 2.28.9: for tests without a GPU; this is no GPU result\n");
  });
}

}  // namespace

FAKE_NCCL_EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = fake_nccl::ReadFaults().version;
  return ncclSuccess;
}

FAKE_NCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::string name = fake_nccl::Segment::MakeName();
  if (name.empty() || name.size() >= sizeof(id->internal)) return ncclSystemError;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

FAKE_NCCL_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "invalid argument";
  }
}

FAKE_NCCL_EXPORT const char* ncclGetLastError(ncclComm_t) {
  return "(this is the fake NCCL)";
}

FAKE_NCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                                     int rank, ncclConfig_t* config) {
  SayThatThisIsAFake();
  const int policy = fake_nccl::ReadFaults().policy;
  const bool usable = config != nullptr && config->magic == 0xcafebeef && config->blocking == 0 &&
                      (policy < 0 || config->CTAPolicy == policy) && ranks > 0 &&
                      ranks <= fake_nccl::kMaxRanks && rank >= 0 && rank < ranks;
  if (!usable) return ncclInvalidArgument;
  id.internal[sizeof(id.internal) - 1] = '\0';
  auto segment = fake_nccl::Segment::Join(id.internal, rank);
  if (segment == nullptr) return ncclInvalidUsage;
  *comm = new ncclComm(rank, ranks, std::move(segment), fake_nccl::ReadFaults());
  return ncclInProgress;
}

FAKE_NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return comm->AsyncError(state);
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return comm->Finalize();
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->End(false);
  return ncclSuccess;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->End(true);
  return ncclSuccess;
}

FAKE_NCCL_EXPORT ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count,
                                            ncclDataType_t type, ncclRedOp_t operation,
                                            ncclComm_t comm, cudaStream_t stream) {
  return comm->Collective(Kind::kAllReduce, send, recv, count, type, operation, 0, stream);
}
FAKE_NCCL_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count,
                                                ncclDataType_t type, ncclRedOp_t operation,
                                                ncclComm_t comm, cudaStream_t stream) {
  return comm->Collective(Kind::kReduceScatter, send, recv, count, type, operation, 0, stream);
}
FAKE_NCCL_EXPORT ncclResult_t ncclAllGather(const void* send, void* recv, size_t count,
                                            ncclDataType_t type, ncclComm_t comm,
                                            cudaStream_t stream) {
  return comm->Collective(Kind::kAllGather, send, recv, count, type, ncclSum, 0, stream);
}
FAKE_NCCL_EXPORT ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count,
                                            ncclDataType_t type, int root, ncclComm_t comm,
                                            cudaStream_t stream) {
  return comm->Collective(Kind::kBroadcast, send, recv, count, type, ncclSum, root, stream);
}

#ifndef FAKE_NCCL_IS_BARE
// One segment serves all; the other ids must have come whole, and theirs go.
FAKE_NCCL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank,
                                                       int id_count, ncclUniqueId* ids,
                                                       ncclConfig_t* config) {
  if (id_count < 1 || id_count > ranks) return ncclInvalidArgument;
  for (int i = 1; i < id_count; ++i) {
    if (std::strncmp(ids[i].internal, "/engine_fake_nccl.", 18) != 0) return ncclInvalidUsage;
    shm_unlink(ids[i].internal);
  }
  return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                                            ncclConfig_t* config) {
  // What a parent shares with its children must not be shared while both work.
  const bool usable = config != nullptr && config->magic == 0xcafebeef && config->blocking == 0 &&
                      config->splitShare == 0;
  return usable ? comm->Split(color, key, child) : ncclInvalidArgument;
}
FAKE_NCCL_EXPORT ncclResult_t ncclGroupStart() {
  if (fake_nccl::ReadFaults().group) return ncclInvalidUsage;
  fake_nccl::CurrentGroup().Start();
  return ncclSuccess;
}
FAKE_NCCL_EXPORT ncclResult_t ncclGroupEnd() {
  return fake_nccl::CurrentGroup().End();
}
#endif

FAKE_NCCL_EXPORT ncclResult_t ncclMemAlloc(void** memory, size_t size) {
  if (fake_nccl::ReadFaults().memory) return ncclUnhandledCudaError;
  return cudaMalloc(memory, size) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
FAKE_NCCL_EXPORT ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void*, size_t,
                                               void** handle) {
  *handle = comm;
  return ncclSuccess;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return handle == comm ? ncclSuccess : ncclInvalidUsage;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void*, size_t,
                                                     ncclWindow_t* window, int) {
  return comm->RegisterWindow(window);
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return window == reinterpret_cast<ncclWindow_t>(comm) ? ncclSuccess : ncclInvalidUsage;
}
