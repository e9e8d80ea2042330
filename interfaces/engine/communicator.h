// How bytes move between ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

enum class TransferKind : int32_t {
  kAllReduce = 0,      // recv[i] = reduction over ranks of send[i]
  kReduceScatter = 1,  // recv = this rank's slice of the reduction; send holds world_size slices
                       // of `count`
  kAllGather = 2,      // recv = the `count` elements of every rank, in rank order
  kBroadcast = 3,      // recv = send of rank `root`
  kBarrier = 4,        // a barrier is done when every rank has submitted it; no data
  kPush = 5,  // send = this rank's gradients of a served bucket; done when servers have them,
              // whatever other ranks do
  kPull = 6,  // recv = the parameters of a served bucket: see ParameterClient
};

constexpr const char* Name(TransferKind kind) noexcept {
  constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                    "barrier",    "push",           "pull"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

constexpr uint32_t Bit(TransferKind kind) noexcept {
  return 1u << static_cast<int32_t>(kind);
}
constexpr uint32_t Bit(DType dtype) noexcept {
  return 1u << static_cast<int32_t>(dtype);
}

enum class Reduction : int32_t { kSum = 0, kMax = 1, kMin = 2 };

// One transfer, by value. A transfer of any kind and dtype of traits(), with any reduction, root
// and count, in place or not, gives what TransferKind says. `send` == `recv` means in place (for
// reduce-scatter: recv == the rank's slice of send; for all-gather: send == the rank's slice of
// recv). Buffers belong to the caller and stay untouched until the Work is terminal. Then, after an
// error too, the engine frees them: what hardware may still read or write when a transfer cannot be
// cancelled (MPI, RDMA) has to be memory of the implementation, which keeps it.
//
// The result of a reduction is the same on all ranks, to the bit: else their parameters drift
// apart. A reduction should have one order, so that a run that is repeated has the same results.
//
// A transfer is late when nothing that it waits for has moved for timeout_ms: not while transfers
// before it move.
struct Transfer {
  uint64_t struct_size = sizeof(Transfer);
  TransferKind kind = TransferKind::kAllReduce;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  int32_t root = 0;  // kBroadcast
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;  // elements per rank: see TransferKind; 0 is legal and moves nothing
  uint64_t key = 0;   // what is moved, the same on all ranks: equal keys have equal buffers, count
                      // and kind in every step, so an implementation may keep what it prepared;
                      // 0 = unknown. A communicator that sees the key of a peer should refuse
                      // another with kInvalidArgument, on every rank
  int32_t priority = 0;          // larger is more urgent; an implementation may ignore it
  uint32_t bucket = UINT32_MAX;  // of the scheduler's plan, for messages; UINT32_MAX: none
  uint64_t sequence = 0;         // position in the order of submission, the same on all ranks
  Stream* stream = nullptr;      // device work that `send` waits for; null: `send` is ready now
  int64_t timeout_ms = 30000;  // > 0; the Work fails with kTimeout when for so long nothing that it
                               // waits for has moved: no byte of it or of transfers before it, on
                               // any rank that it needs. Counted from Submit, or from when
                               // `stream` has come to it
};
ENGINE_LAYOUT(Transfer, struct_size, kind, dtype, reduction, root, send, recv, count, key, priority,
              bucket, sequence, stream, timeout_ms);

enum class WorkState : int32_t { kPending = 0, kDone = 1, kFailed = 2 };
// A transfer under way, which the caller releases exactly once. A Work that is released before it
// is terminal is kept alive until it is.
ENGINE_INTERFACE(Work, Interface, "engine.work.draft/1", state, started_ns, WaitHost, WaitStream,
                 OnDone, Release);
class WorkBase : public Implements<Work> {
 public:
  // Never blocks. [any-thread]
  virtual WorkState state() const noexcept = 0;

  // In ns, when the first byte was handed to the network or to memory shared with a peer.
  // started_ns() is on CLOCK_MONOTONIC, between Submit and the end, and stays; 0 if it is not
  // known. started_ns() is 0 while no byte was handed on. [any-thread]
  virtual int64_t started_ns() const noexcept = 0;

  // Blocks until the transfer is terminal and its result is visible to the caller, at most
  // `timeout_ms`. Returns the error of the transfer, every time it is asked. WaitHost returns
  // kTimeout if the transfer is still pending, which goes on. [any-thread]
  virtual Status WaitHost(int64_t timeout_ms) noexcept = 0;

  // Makes work queued on `stream` from now on start after the transfer; does not block the host. A
  // CPU implementation may do WaitHost here when `stream` is a CPU stream. [compute-lane]
  virtual Status WaitStream(Stream* stream) noexcept = 0;

  // OnDone calls back exactly once when the transfer is terminal, also after an error, at once if
  // it is terminal already, else without locks from a thread of the implementation, or from one
  // that is in WaitHost of any Work. Once per Work. It must not block. A callback of OnDone may
  // submit the next transfer and release its Work. [any-thread]
  virtual void OnDone(void (*callback)(void* context), void* context) noexcept = 0;

  // Release ends the caller's use: memory does not grow with the number of transfers. The object
  // may be reused by the implementation. [any-thread]
  virtual void Release() noexcept = 0;

 protected:
  virtual ~WorkBase() = default;
};

struct CommunicatorTraits {
  uint64_t struct_size = sizeof(CommunicatorTraits);
  uint32_t kinds = 0;    // Bit(TransferKind) | ...; all-reduce is among them
  uint32_t dtypes = 0;   // Bit(DType) | ...; float32 is among them
  uint32_t ordered = 1;  // 1: all ranks must submit in the same order. Ranks that submit different
                         // transfers at one place of the order should get an error
                         // (kInvalidArgument), not a wrong result
  uint32_t max_in_flight = 0;  // transfers that make progress at once; 0 = no bound
  uint32_t no_op = 0;          // 1: moves nothing: results are not reduced
  uint32_t device_memory = 0;  // 1: buffers may lie in memory of the run's device, if that is an
                               // Accelerator; 0: in host memory only
};
ENGINE_LAYOUT(CommunicatorTraits, struct_size, kinds, dtypes, ordered, max_in_flight, no_op,
              device_memory);

// One group of ranks. Created with the rank, size and store of its Host; creation is collective and
// fails with kRendezvous when a rank has not come by RankInfo::rendezvous_timeout_ms. The error of
// a creation should name the first rank that has not come. Several may live in a process, at once
// and one after another: deleting one gives back its descriptors, threads and memory.
//
// A Work fails with kTimeout when for timeout_ms nothing that it waits for has moved, and not
// before; a failed communicator fails every later call with that reason. After Abort every later
// call fails with the first reason. A kTimeout should name the rank that has not moved, on every
// rank. When a rank aborts or its process dies, the transfers of others that need it should fail
// within a second, with kPeerLost and its rank, and not only by their deadline.
//
// When a run fails the engine calls Abort before it deletes the communicator. There is no Abort
// where a run ends well or on request, or where another plugin of the rank could not be made. The
// destructor ends every pending Work, with kAborted, before it returns.
ENGINE_INTERFACE(Communicator, Object, "engine.communicator.draft/1", traits, Submit, Abort);
class CommunicatorBase : public Implements<Communicator> {
 public:
  // traits() names kinds and dtypes that there are, all-reduce and float32
  // among them; with one rank a transfer is a local copy, so no_op is 0. [any-thread]
  virtual CommunicatorTraits traits() const noexcept = 0;

  // Starts a transfer and returns at once; *out is the caller's to Release. Any number of transfers
  // may be under way at once, waited for in any order; equal keys have equal buffers in every step.
  // No Work is made on error. Submit should refuse a count below 0 and a timeout_ms of 0 with
  // kInvalidArgument and make no Work; that is no failure of the communicator. Submit and Release
  // should allocate nothing once as many transfers have been under way: they are called within a
  // step. [io-lane]
  virtual Status Submit(const Transfer& transfer, Work** out) noexcept = 0;

  // Abort makes every pending and later Work fail with `reason` within a second; the first reason
  // stays, and every wait returns it. It may be called again. [any-thread]
  virtual void Abort(const Status& reason) noexcept = 0;
};

}  // namespace engine
