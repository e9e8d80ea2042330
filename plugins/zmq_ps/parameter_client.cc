#include "parameter_client.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <exception>

#include "describe.h"

namespace engine::zmq_ps {
namespace {

// Beyond the deadline of a work, after which its worker has the last word.
constexpr int64_t kLastWordMs = 5000;

Status Invalid(const Transfer& transfer, const char* what) noexcept {
  return Status::Error(StatusCode::kInvalidArgument, "%s %s", Describe(transfer).c_str(), what);
}

}  // namespace

ServedParameters::ServedParameters(const ParameterTraits& traits, uint64_t slice_bytes,
                                   Worker& worker, std::shared_ptr<WorkPool> pool,
                                   std::function<void(Optimizer&)> serve)
    : traits_(traits),
      slice_bytes_(slice_bytes),
      worker_(worker),
      pool_(std::move(pool)),
      serve_(std::move(serve)) {}

Status ServedParameters::Check(const Transfer& transfer) const noexcept {
  const Unit* const unit = units_.Find(transfer.key);
  if (!unit) return Invalid(transfer, "is of no unit that was registered");
  if (transfer.count != unit->count || transfer.dtype != DType::kFloat32) {
    return Invalid(transfer, "is not what was registered under this key");
  }
  const bool is_push = transfer.kind == TransferKind::kPush;
  if (is_push ? !transfer.send : !transfer.recv) return Invalid(transfer, "has no buffer");
  // A pull before the first step is of what is there.
  if (is_push && step().step == 0) return Invalid(transfer, "is of no step: BeginStep comes first");
  return transfer.rows ? CheckRows(transfer, *unit) : Status();
}

Status ServedParameters::CheckRows(const Transfer& transfer, const Unit& unit) const noexcept {
  if (unit.row == 0) return Invalid(transfer, "names rows of a unit that has none");
  const int64_t rows = unit.count / unit.row;
  if (transfer.row_count < 0 || transfer.row_count > rows) {
    return Invalid(transfer, "names more rows than there are");
  }
  int64_t last = -1;
  for (int64_t i = 0; i < transfer.row_count; ++i) {
    const int64_t row = transfer.rows[i];
    if (row <= last || row >= rows) return Invalid(transfer, "names rows that do not ascend");
    last = row;
  }
  return {};
}

void ServedParameters::Prepare(PooledWork* work) const noexcept {
  const ServedStep now = step();
  work->unit = units_.Find(work->transfer().key);
  work->served = {.step = now.step, .sparse = work->transfer().rows != nullptr};
  if (work->operation != Operation::kPush) return;
  work->served.learning_rate = now.learning_rate;
  work->served.weight = now.weight;
}

Result<PooledWork*> ServedParameters::Ask(const Question& question) {
  Transfer transfer{.kind = question.unit ? TransferKind::kPush : TransferKind::kBarrier,
                    .send = question.send,
                    .recv = question.recv,
                    .priority = INT32_MAX,
                    .timeout_ms = question.timeout_ms};
  if (question.unit) {
    transfer.key = question.unit->key;
    transfer.count = question.unit->count;
  }
  PooledWork* const work = pool_->Take(transfer);
  if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a request");
  work->operation = question.operation;
  work->unit = question.unit;
  work->served.state = question.state;
  // Step 0: what was pushed so far.
  const bool whole_step =
      question.operation == Operation::kLoad && traits_.mode == UpdateMode::kSync;
  if (whole_step) work->served.step = step().step;
  work->served.digest = units_.digest();
  if (question.operation == Operation::kRegister) {
    work->served.row = static_cast<uint64_t>(question.unit->row);
  }
  const Status refused = worker_.Submit(work);
  if (refused.ok()) return work;
  work->Complete(refused);
  work->Release();
  return refused;
}

Status ServedParameters::Answer(const Question& question, uint64_t* last_step) noexcept {
  if (question.timeout_ms <= 0) {
    return Status::Error(StatusCode::kInvalidArgument, "a timeout of %" PRId64 " ms",
                         question.timeout_ms);
  }
  try {
    ENGINE_ASSIGN_OR_RETURN(PooledWork* const work, Ask(question));
    const Status status = work->WaitHost(question.timeout_ms + kLastWordMs);
    if (status.ok() && last_step) *last_step = work->last_step;
    work->Release();
    return status;
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot ask a server: %s", error.what());
  }
}

Status ServedParameters::Register(std::span<const ServedUnit> units, Optimizer& optimizer,
                                  int64_t timeout_ms) noexcept {
  if (registered_) {
    return Status::Error(StatusCode::kInvalidArgument, "units are registered once only");
  }
  try {
    ENGINE_ASSIGN_OR_RETURN(units_, UnitTable::Create(units, slice_bytes_));
    registered_ = true;
    states_ = optimizer.traits().state_count;
    if (serve_) serve_(optimizer);
    std::vector<PooledWork*> works;
    Status status;
    for (const auto& [key, unit] : units_.all()) {
      auto asked =
          Ask({.operation = Operation::kRegister, .unit = &unit, .timeout_ms = timeout_ms});
      if (!asked.ok()) status = asked.status();
      if (!asked.ok()) break;
      works.push_back(*asked);
    }
    for (PooledWork* const work : works) {
      const Status registered = work->WaitHost(timeout_ms + kLastWordMs);
      if (status.ok()) status = registered;
      work->Release();
    }
    ENGINE_RETURN_IF_ERROR(status);
    // Also to servers that keep nothing of these units, so that they compare them all.
    return Answer({.operation = Operation::kLastStep, .timeout_ms = timeout_ms});
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot register: %s", error.what());
  }
}

Result<const Unit*> ServedParameters::Find(uint64_t key) const noexcept {
  const Unit* const unit = units_.Find(key);
  if (unit) return unit;
  return Status::Error(StatusCode::kInvalidArgument, "unit %016" PRIx64 " was not registered", key);
}

Status ServedParameters::Store(uint64_t key, int32_t state, const float* data,
                               int64_t timeout_ms) noexcept {
  ENGINE_ASSIGN_OR_RETURN(const Unit* const unit, Find(key));
  if (state >= states_) {
    return Status::Error(StatusCode::kInvalidArgument, "the optimizer has no state %d", state);
  }
  return Answer({.operation = Operation::kStore,
                 .unit = unit,
                 .state = std::max(state, -1),
                 .send = data,
                 .timeout_ms = timeout_ms});
}

Status ServedParameters::Load(uint64_t key, int32_t state, float* data,
                              int64_t timeout_ms) noexcept {
  ENGINE_ASSIGN_OR_RETURN(const Unit* const unit, Find(key));
  if (state >= states_) {
    return Status::Error(StatusCode::kInvalidArgument, "the optimizer has no state %d", state);
  }
  return Answer({.operation = Operation::kLoad,
                 .unit = unit,
                 .state = std::max(state, -1),
                 .recv = data,
                 .timeout_ms = timeout_ms});
}

Status ServedParameters::LastStep(int64_t timeout_ms, uint64_t* step) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckRegistered());
  ENGINE_RETURN_IF_ERROR(
      Answer({.operation = Operation::kLastStep, .timeout_ms = timeout_ms}, step));
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
