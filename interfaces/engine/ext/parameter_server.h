// Parameters that live at servers: what a communicator may offer beside collectives.
//
// Ranks push gradients, servers update the parameters with the optimizer plugin, ranks pull what
// they need. A communicator offers it by Query; one that returns null for ParameterClient::kId
// moves bytes only, and the ranks update.
//
//   rank                                  server (a member of the run, or part of a rank)
//   Register(buckets)                  ->   knows the buckets
//   rank 0: Store(bucket, values)      ->   has values
//   others: Load(bucket)               <-
//   BeginStep(t)
//   kPush(bucket)                      ->   adds up (sync), or updates at once
//   kPull(bucket)                      <-   when the update mode allows it
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/optimizer.h"
#include "engine/status.h"

namespace engine {

// When pushes become updates, and what a pull waits for. A push is done when servers have it,
// whatever other ranks do.
//
// kSync: the update of a step is made once, of the sum over all ranks in one order, divided by the
// sum of the weights unless that is 0. kSync: a pull of step t waits for the update of step t, of all
// ranks. kSync: a pull that needs a rank that has left fails with kPeerLost and its rank. The
// kTimeout of a pull should name the rank that has not pushed.
//
// kBounded, kAsync: each push is an update. kBounded, kAsync: every push is applied exactly once.
// kBounded, kAsync: a pull has the own push and every push that has ended before. kBounded: a pull
// of step t waits until every rank that is there has pushed step t - staleness, and no longer.
//
// kBounded, kAsync: a rank that has left holds nobody. kBounded, kAsync: the others go on when a
// rank leaves or gives up, with collectives of those that are left. A rank that ends because
// parameters were lost with another one should fail with kPeerLost and that rank, or with
// ServerId(index).
enum class UpdateMode : int32_t { kSync = 0, kBounded = 1, kAsync = 2 };

constexpr const char* Name(UpdateMode mode) noexcept {
  constexpr const char* kNames[] = {"sync", "bounded", "async"};
  return kNames[static_cast<int32_t>(mode)];
}

struct ParameterTraits {
  uint64_t struct_size = sizeof(ParameterTraits);
  UpdateMode mode = UpdateMode::kSync;
  int32_t staleness = 0;  // kBounded: steps
};
ENGINE_LAYOUT(ParameterTraits, struct_size, mode, staleness);

// A part of a bucket that belongs to one parameter.
struct ServedSpan {
  int64_t count = 0;             // elements
  float weight_decay_scale = 1;  // see UpdateCall
  uint32_t reserved = 0;         // 0
};
ENGINE_LAYOUT(ServedSpan, count, weight_decay_scale, reserved);

struct ServedBucket {
  uint64_t key = 0;                    // Transfer::key of its pushes and pulls; never 0
  int64_t count = 0;                   // float32 elements
  Array<const ServedSpan> spans = {};  // in order; together `count` elements
  int64_t row = 0;  // > 0: rows of so many elements may be pushed and pulled alone (SelectRows)
};
ENGINE_LAYOUT(ServedBucket, key, count, spans, row);

// What all pushes of a step carry.
struct ServedStep {
  uint64_t struct_size = sizeof(ServedStep);
  // ServedStep::step is one more than that of the last call by this rank, else kInvalidArgument;
  // the first one is free, so that a run may be continued.
  uint64_t step = 1;
  float learning_rate = 0;  // kSync: the same on all ranks
  float weight = 0;         // of this rank's gradients, which are sums over so many samples
};
ENGINE_LAYOUT(ServedStep, struct_size, step, learning_rate, weight);

// Of a rank. One for each communicator; lives as long as that does. A rank's communicator offers
// push and pull, and traits().mode is the same on all ranks. Collectives and pushes and pulls may
// be under way at once. After Abort every pending and later push, pull and call of the client fails
// with the first reason.
//
// Calls before Register, of a bucket or state that there is not, and pushes before BeginStep should
// be kInvalidArgument. A push or pull of another key, count or dtype than registered, or of rows
// that do not ascend within the bucket, should be kInvalidArgument.
ENGINE_INTERFACE(ParameterClient, Interface, "engine.parameter_client.draft/1", traits, Register,
                 Store, Load, LastStep, SelectRows, BeginStep);
class ParameterClientBase : public Implements<ParameterClient> {
 public:
  virtual ParameterTraits traits() const noexcept = 0;  // [any-thread]

  // Tells all servers what they will keep. Register: the buckets are the same on all ranks, else
  // kInvalidArgument on those that differ from the first. Register should refuse a key of 0, a key
  // twice, spans that are not `count` elements and a row that does not divide it, with
  // kInvalidArgument. `optimizer` is for a server that is part of this rank: it is used
  // until the communicator is gone, and the other ranks' Register waits for it. Before anything
  // below; once. [setup]
  virtual Status Register(Array<const ServedBucket> buckets, Optimizer& optimizer,
                          int64_t timeout_ms) noexcept = 0;

  // `state` < 0: the values; else one of the states of the bucket's optimizer. Store gives a bucket
  // its values or a state, which is zero until then; Load reads them. A state of the optimizer that
  // was stored is the one that the next update uses. Rank 0 does it before the first step of a run,
  // states first: whoever loads or pulls values waits for the values, and then goes on.
  // `timeout_ms` as of a Transfer. [setup]
  virtual Status Store(uint64_t key, int32_t state, const float* data,
                       int64_t timeout_ms) noexcept = 0;

  // What is there now, with every update of pushes that this rank has seen end. kSync: Load has the
  // whole of the step of the last BeginStep. Whoever loads values waits for them at most
  // `timeout_ms`, then kTimeout. Abort ends a Load that waits. [setup]
  virtual Status Load(uint64_t key, int32_t state, float* data, int64_t timeout_ms) noexcept = 0;

  // LastStep is the last step of which every server has all pushes of this rank, 0 if there is
  // none. One that takes the place of a lost rank (RankInfo::incarnation) goes on after LastStep;
  // what it pushes again is not applied twice. After Register. [setup]
  virtual Status LastStep(int64_t timeout_ms, uint64_t* step) noexcept = 0;

  // The push that is submitted next, of the bucket `key`, which has rows, reads these rows alone.
  // Rows that were not selected count as gradients of zero. SelectRows: the pull that is submitted
  // next writes these rows alone. They ascend; `send` and `recv` hold the whole bucket. Borrowed
  // until that transfer ends. [io-lane]
  virtual void SelectRows(uint64_t key, std::span<const int32_t> rows) noexcept = 0;

  // Pushes and pulls that are submitted from now on are of this step. None of the step before is
  // under way. A pull before the first call gets what is there. [compute-lane]
  virtual Status BeginStep(const ServedStep& step) noexcept = 0;

 protected:
  ~ParameterClientBase() = default;
};
// UpdateCall::step is that of ServedStep when updates are made once a step (kSync); else the number
// of updates of the bucket, at least the step.
//
// Of a member with RankInfo::is_server. The communicator of a server moves nothing else: traits()
// is empty and Submit fails. Abort of a server's communicator ends Serve with its reason; the ranks
// lose ServerId(index).
ENGINE_INTERFACE(ParameterServer, Interface, "engine.parameter_server.draft/1", Serve);
class ParameterServerBase : public Implements<ParameterServer> {
 public:
  // Serve returns when every rank has left. `optimizer` is used until it returns. Once. [setup]
  virtual Status Serve(Optimizer& optimizer) noexcept = 0;

 protected:
  ~ParameterServerBase() = default;
};

}  // namespace engine
