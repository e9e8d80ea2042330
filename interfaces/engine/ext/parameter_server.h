// Parameters that live at servers: what a communicator may offer beside collectives.
//
// Ranks push gradients, servers update the parameters with the optimizer plugin, ranks pull what
// they need. A communicator offers it by Query; one that returns null for ParameterClient::kId moves
// bytes only, and the ranks update.
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

enum class UpdateMode : int32_t {
  kSync = 0,     // the update of step t is made once, of the sum over all ranks, when all have
                 // pushed; a pull of step t waits for it
  kBounded = 1,  // each push is an update; a pull of step t waits until every rank that is there
                 // has pushed step t - staleness
  kAsync = 2,    // each push is an update; a pull waits for the own push only
};

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
  uint32_t reserved = 0;
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
  uint64_t step = 1;        // one more than that of the last call by this rank; the first one is
                            // free, so that a run may be continued
  float learning_rate = 0;  // kSync: the same on all ranks
  float weight = 0;  // of this rank's gradients, which are sums over so many samples: an update
                     // divides by the sum of the weights that it is made of, at least 1
};
ENGINE_LAYOUT(ServedStep, struct_size, step, learning_rate, weight);

// Of a rank. One for each communicator; lives as long as that does. Calls out of this order, of a
// bucket or state that there is not, or with what differs from the registered bucket are
// kInvalidArgument. A pull that needs a rank that has left fails with kPeerLost and its rank, and
// its kTimeout names the rank that has not pushed (kSync). In the other modes every push is applied
// exactly once and a rank that has left holds nobody, unless parameters were lost with it:
// kPeerLost with it, or with ServerId(index).
ENGINE_INTERFACE(ParameterClient, Interface, "engine.parameter_client.draft/1", traits, Register,
                 Store, Load, LastStep, SelectRows, BeginStep);
class ParameterClientBase : public Implements<ParameterClient> {
 public:
  virtual ParameterTraits traits() const noexcept = 0;  // [any-thread]

  // Tells all servers what they will keep; the same on all ranks, else kInvalidArgument on those
  // that differ from the first. `optimizer` is for a server that is part of this rank: it is used
  // until the communicator is gone, and the other ranks' Register waits for it. Before anything
  // below; once. [setup]
  virtual Status Register(Array<const ServedBucket> buckets, Optimizer& optimizer,
                          int64_t timeout_ms) noexcept = 0;

  // Gives a bucket its values (`state` < 0) or one of the states of its optimizer: zero until then.
  // Rank 0 does it before the first step of a run, states first: whoever loads or pulls values
  // waits for the values, and then goes on. `timeout_ms` as of a Transfer. [setup]
  virtual Status Store(uint64_t key, int32_t state, const float* data,
                       int64_t timeout_ms) noexcept = 0;

  // Reads them: what is there now, with every update of pushes that this rank has seen end and,
  // with kSync, the whole of the step of the last BeginStep. Blocks at most `timeout_ms`. [setup]
  virtual Status Load(uint64_t key, int32_t state, float* data, int64_t timeout_ms) noexcept = 0;

  // The last step of which every server has all pushes of this rank, 0 if there is none: where one
  // that takes the place of a lost rank goes on (RankInfo::incarnation). After Register. [setup]
  virtual Status LastStep(int64_t timeout_ms, uint64_t* step) noexcept = 0;

  // The push or pull that is submitted next, of the bucket `key`, which has rows, moves these
  // alone: ascending, read from `send` or written to `recv`, which hold the whole bucket. Borrowed
  // until that transfer ends. Rows of a push that are not selected count as gradients of zero.
  // [io-lane]
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
// Of a member with RankInfo::is_server. Its communicator moves nothing else: traits() is empty and
// Submit fails.
ENGINE_INTERFACE(ParameterServer, Interface, "engine.parameter_server.draft/1", Serve);
class ParameterServerBase : public Implements<ParameterServer> {
 public:
  // Serves until every rank has left, or until Abort of the communicator, whose reason it returns.
  // `optimizer` is used until it returns. Once. [setup]
  virtual Status Serve(Optimizer& optimizer) noexcept = 0;

 protected:
  ~ParameterServerBase() = default;
};

}  // namespace engine
