// A step is what BeginStep said last, under mutex_; pushes and pulls take it when they are
// submitted. Buckets are constant after Register, which comes before everything else, and need no
// lock.
#include "parameter_client.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <exception>

#include "served_spec.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

Status Invalid(const Transfer& transfer, const char* what) noexcept {
  return Status::Error(StatusCode::kInvalidArgument, "%s %s",
                       Describe(transfer, OperationOf(transfer.kind)).c_str(), what);
}

}  // namespace

ServedParameters::ServedParameters(const ParameterTraits& traits, uint64_t slice_bytes,
                                   Worker& worker, Works& works,
                                   std::function<void(Optimizer&)> serve)
    : traits_(traits),
      slice_bytes_(slice_bytes),
      worker_(worker),
      works_(works),
      serve_(std::move(serve)) {}

Status ServedParameters::Check(const Transfer& transfer) const noexcept {
  const Bucket* const bucket = buckets_.Find(transfer.key);
  if (!bucket) return Invalid(transfer, "is of no bucket that was registered");
  if (transfer.count != bucket->count || transfer.dtype != DType::kFloat32) {
    return Invalid(transfer, "is not what was registered under this key");
  }
  const bool is_push = transfer.kind == TransferKind::kPush;
  if (is_push ? !transfer.send : !transfer.recv) return Invalid(transfer, "has no buffer");
  // A pull before the first step is of what is there.
  if (is_push && step().step == 0) return Invalid(transfer, "is of no step: BeginStep comes first");
  return {};
}

// Rows wait for one transfer; those that nobody asked for are forgotten.
Status ServedParameters::TakeRows(TransferWork* work) noexcept {
  const auto [key, rows] = std::exchange(selected_, {});
  const Transfer& transfer = work->transfer();
  if (key != transfer.key) return {};
  const Bucket& bucket = *work->bucket;
  if (bucket.row == 0) return Invalid(transfer, "names rows of a bucket that has none");
  const int64_t count = bucket.count / bucket.row;
  if (static_cast<int64_t>(rows.size()) > count) {
    return Invalid(transfer, "names more rows than there are");
  }
  if (ObjectionToRows(rows, 0, count)) return Invalid(transfer, "names rows that do not ascend");
  work->rows = rows;
  work->served.rows = 0;
  return {};
}

// A pull before the first step has step 0: it asks for what is there.
Status ServedParameters::Prepare(TransferWork* work) noexcept {
  ENGINE_RETURN_IF_ERROR(Check(work->transfer()));
  const ServedStep now = step();
  work->bucket = buckets_.Find(work->transfer().key);
  work->served = {.step = now.step, .rows = -1};
  if (work->operation == Operation::kPush) {
    work->served.learning_rate = now.learning_rate;
    work->served.weight = now.weight;
  }
  return TakeRows(work);
}

// Asks servers without the caller's Work, and waits for the answer: the waiting thread makes the
// progress of the worker meanwhile, which ends what does not move. The work is given back only
// after it is terminal, because libzmq refers to `send` until then.
Status ServedParameters::Ask(Question question) noexcept {
  if (question.timeout_ms <= 0) {
    return Status::Error(StatusCode::kInvalidArgument, "a timeout of %" PRId64 " ms",
                         question.timeout_ms);
  }
  const Bucket* const bucket = buckets_.Find(question.key);
  if (!bucket && question.operation != Operation::kLastStep) {
    return Status::Error(StatusCode::kInvalidArgument, "bucket %016" PRIx64 " was not registered",
                         question.key);
  }
  if (question.state >= states_) {
    return Status::Error(StatusCode::kInvalidArgument, "the optimizer has no state %d",
                         question.state);
  }
  const Transfer transfer{.kind = bucket ? TransferKind::kPush : TransferKind::kBarrier,
                          .send = question.send,
                          .recv = question.recv,
                          .count = bucket ? bucket->count : 0,
                          .key = question.key,
                          .priority = INT32_MAX,
                          .timeout_ms = question.timeout_ms};
  ENGINE_ASSIGN_OR_RETURN(TransferWork* const work, works_.Take(transfer));
  work->operation = question.operation;
  work->bucket = bucket;
  work->served.state = std::max(question.state, -1);
  // Step 0: what was pushed so far.
  const bool whole_step =
      question.operation == Operation::kLoad && traits_.mode == UpdateMode::kSync;
  if (whole_step) work->served.step = step().step;
  work->served.digest = buckets_.digest();
  if (bucket) work->served.row = static_cast<uint64_t>(bucket->row);
  Status status = worker_.Submit(work);
  if (status.ok()) {
    status = work->WaitHost(kMaxTimeoutMs);
  } else {
    work->Complete(status);
  }
  if (status.ok() && question.last_step) *question.last_step = work->last_step;
  work->Release();
  return status;
}

Status ServedParameters::Register(Array<const ServedBucket> buckets, Optimizer& optimizer,
                                  int64_t timeout_ms) noexcept {
  if (registered_) {
    return Status::Error(StatusCode::kInvalidArgument, "buckets are registered once only");
  }
  try {
    ENGINE_ASSIGN_OR_RETURN(buckets_, BucketTable::Create(buckets, slice_bytes_));
    registered_ = true;
    states_ = optimizer.traits().state_count;
    if (serve_) serve_(optimizer);
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot register: %s", error.what());
  }
  for (const auto& [key, bucket] : buckets_.all()) {
    ENGINE_RETURN_IF_ERROR(
        Ask({.operation = Operation::kRegister, .key = key, .timeout_ms = timeout_ms}));
  }
  // Also to servers that keep nothing of these buckets, so that they compare them all.
  return Ask({.operation = Operation::kLastStep, .timeout_ms = timeout_ms});
}

Status ServedParameters::Store(uint64_t key, int32_t state, const float* data,
                               int64_t timeout_ms) noexcept {
  return Ask({.operation = Operation::kStore,
              .key = key,
              .state = state,
              .send = data,
              .timeout_ms = timeout_ms});
}

Status ServedParameters::Load(uint64_t key, int32_t state, float* data,
                              int64_t timeout_ms) noexcept {
  return Ask({.operation = Operation::kLoad,
              .key = key,
              .state = state,
              .recv = data,
              .timeout_ms = timeout_ms});
}

Status ServedParameters::LastStep(int64_t timeout_ms, uint64_t* step) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckRegistered());
  ENGINE_RETURN_IF_ERROR(
      Ask({.operation = Operation::kLastStep, .timeout_ms = timeout_ms, .last_step = step}));
  if (*step == kMaxStep) *step = 0;  // no server keeps anything
  return {};
}

Status ServedParameters::CheckRegistered() const noexcept {
  if (registered_) return {};
  return Status::Error(StatusCode::kInvalidArgument, "Register comes first");
}

Status ServedParameters::BeginStep(const ServedStep& step) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckRegistered());
  const std::lock_guard lock(mutex_);
  const bool follows = step_.step == 0 ? step.step > 0 : step.step == step_.step + 1;
  if (!follows || step.step > kMaxStep) {
    return Status::Error(StatusCode::kInvalidArgument, "step %" PRIu64 " after step %" PRIu64,
                         step.step, step_.step);
  }
  if (!std::isfinite(step.learning_rate) || !std::isfinite(step.weight) || step.weight < 0) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "step %" PRIu64 " with learning rate %g and weight %g", step.step,
                         static_cast<double>(step.learning_rate), static_cast<double>(step.weight));
  }
  step_ = step;
  return {};
}

ServedStep ServedParameters::step() const noexcept {
  const std::lock_guard lock(mutex_);
  return step_;
}

}  // namespace engine::zmq_ps
