// A communicator of the fake NCCL.
//
// It behaves as one of NCCL that does not block: what needs time is under way until it has been
// asked for often enough, and meanwhile every other call is refused. Two threads in one
// communicator, or use after the end, end the process: NCCL would be undefined.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "tests/emulated_cuda/nccl/faults.h"
#include "tests/emulated_cuda/nccl/segment.h"

namespace fake_nccl {

enum class Kind : int32_t { kAllReduce = 1, kReduceScatter, kAllGather, kBroadcast };

// One collective of one rank, on its way to a stream; alone or in a group.
struct Operation {
  ncclComm* comm = nullptr;
  Call call;
  const uint8_t* send = nullptr;
  uint8_t* recv = nullptr;
  cudaStream_t stream = nullptr;
  bool absent = false;
};

// Collectives that one thread has called between ncclGroupStart and ncclGroupEnd.
class Group {
 public:
  void Start() { ++depth_; }
  bool open() const { return depth_ > 0; }
  void Add(const Operation& operation);
  // Of a call that was refused: the group ends with the first such result, and nothing of it
  // begins.
  ncclResult_t Refuse(ncclResult_t result);
  ncclResult_t End();

 private:
  int depth_ = 0;
  std::vector<Operation> operations_;
  ncclResult_t error_ = ncclSuccess;
};

// Of the calling thread.
Group& CurrentGroup();

}  // namespace fake_nccl

struct ncclComm {
 public:
  ncclComm(int rank, int ranks, std::unique_ptr<fake_nccl::Segment> segment,
           const fake_nccl::Faults& faults)
      : rank_(rank), ranks_(ranks), segment_(std::move(segment)), faults_(faults) {}

  ncclResult_t Collective(fake_nccl::Kind kind, const void* send, void* recv, size_t count,
                          ncclDataType_t type, ncclRedOp_t operation, int root,
                          cudaStream_t stream);
  // All of one communicator and one stream. Ranks must give the same ones: others would hang or
  // get wrong results with NCCL, and get ncclInvalidUsage by themselves here. They run last first:
  // nobody may count on an order.
  ncclResult_t Begin(std::vector<fake_nccl::Operation> operations);
  // *out is null until AsyncError has said that this is done, and for no colour for good.
  ncclResult_t Split(int color, int key, ncclComm** out);
  ncclResult_t AsyncError(ncclResult_t* state);
  ncclResult_t Finalize();
  ncclResult_t RegisterWindow(ncclWindow_t* window);

  // The caller's handle is gone; the object goes when no stream has work of it any more.
  void End(bool abort);

 private:
  class Inside;

  // What is under way, until it has been asked for often enough.
  enum class Phase { kInit, kReady, kLaunch, kFinalize, kWindow, kSplit, kFinal };

  bool Joined();
  bool HaveWindows();
  bool HaveRequests();
  ncclResult_t MakeChild();
  ncclResult_t Take(std::vector<fake_nccl::Operation> operations);
  bool Progress();
  ncclResult_t Launch(std::vector<fake_nccl::Operation> operations);
  static cudaError_t RunOnStream(void* operations);
  static void Forget(void* operations);

  // On the thread of a stream:
  void Run(const fake_nccl::Operation& operation);
  bool Meet();
  bool AllThere(uint64_t round);
  void Unreference();

  const int rank_, ranks_;
  const std::unique_ptr<fake_nccl::Segment> segment_;
  const fake_nccl::Faults faults_;

  std::atomic<int> references_{1};
  std::atomic<int> inside_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<int> async_error_{ncclSuccess};

  // Of the thread that is inside:
  Phase phase_ = Phase::kInit;
  int polls_left_ = 2;
  int64_t calls_ = 0;
  std::chrono::steady_clock::time_point taken_;  // when what is under way may be
  std::vector<fake_nccl::Operation> launching_;
  uint64_t splits_ = 0;
  ncclComm** child_out_ = nullptr;
  ncclWindow_t* window_out_ = nullptr;
  uint64_t windows_ = 0;

  // Of the thread of the stream:
  uint64_t round_ = 0;
  fake_nccl::Call running_;
};
