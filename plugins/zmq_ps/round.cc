#include "round.h"

#include <algorithm>

#include "describe.h"

namespace engine::zmq_ps {
namespace {

bool Reduces(const SliceSpec& spec) noexcept {
  return spec.operation == Operation::kAllReduce || spec.operation == Operation::kReduceScatter;
}

}  // namespace

Round::Round(const RoundId& id, const Header& first, uint32_t workers)
    : id_(id),
      spec_(first.spec),
      first_worker_(first.worker),
      sequence_(first.sequence),
      arrivals_(workers) {}

std::vector<uint32_t> Round::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t worker = 0; worker < arrivals_.size(); ++worker) {
    if (!HasArrived(worker) && !IsExcused(worker)) missing.push_back(worker);
  }
  return missing;
}

Status Round::Check(const Header& push) const noexcept {
  const int blamed = static_cast<int>(push.worker);
  if (push.world_size != arrivals_.size()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "rank %u counts %u ranks, but there are %zu: all ranks must belong to one "
                         "run",
                         push.worker, push.world_size, arrivals_.size())
        .WithRank(blamed);
  }
  if (HasArrived(push.worker)) {
    return Status::Error(StatusCode::kInvalidArgument, "rank %u submitted %s twice", push.worker,
                         Describe(push.spec, push.sequence).c_str())
        .WithRank(blamed);
  }
  if (IsExcused(push.worker)) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "rank %u came back after %s had begun without it", push.worker,
                         Describe(push.spec, push.sequence).c_str())
        .WithRank(blamed);
  }
  if (push.spec == spec_) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "rank %u submitted %s where rank %u submitted %s%s: ranks must give equal "
                       "keys to equal transfers, and cut them alike (slice_bytes)",
                       push.worker, Describe(push.spec, push.sequence).c_str(), first_worker_,
                       Describe(spec_, sequence_).c_str(),
                       push.spec.tensor != spec_.tensor ? " under another key" : "")
      .WithRank(blamed);
}

bool Round::Excuse(uint32_t worker) noexcept {
  if (!Reduces(spec_) && Contributes(spec_, worker) && spec_.count > 0) return false;
  arrivals_[worker].excused = true;
  arrivals_[worker].settled = true;
  return true;
}

void Round::Arrive(const Header& push, ::zmq::message_t data) {
  Arrival& arrival = arrivals_[push.worker];
  arrival.request = push.request;
  if (state_ != State::kOpen) return;
  arrival.data = std::move(data);
  priority_ = std::max(priority_, push.priority);
  deadline_ = std::min(deadline_, DeadlineIn(push.timeout_ms));
}

bool Round::Advance(ReduceTask* task) {
  if (busy_ || state_ != State::kOpen) return false;
  task->inputs.clear();
  for (; next_ < arrivals_.size() && (HasArrived(next_) || IsExcused(next_)); ++next_) {
    if (IsExcused(next_) || !Contributes(spec_, next_) || spec_.count == 0) continue;
    if (Reduces(spec_)) {
      task->inputs.push_back(std::move(arrivals_[next_].data));
    } else {
      accumulator_ = std::move(arrivals_[next_].data);
    }
  }
  const bool last = next_ == arrivals_.size();
  if (task->inputs.empty()) {
    if (last) state_ = State::kComplete;
    return false;
  }
  task->kernels = &KernelsFor(spec_.dtype, spec_.reduction);
  task->count = static_cast<size_t>(spec_.count);
  task->accumulator = std::move(accumulator_);
  task->last = last;
  task->context = this;
  busy_ = true;
  return true;
}

void Round::Folded(ReduceTask task) {
  busy_ = false;
  if (state_ != State::kOpen) return;
  accumulator_ = std::move(task.accumulator);
}

void Round::Refuse(const Status& reason) {
  if (state_ != State::kOpen) return;
  state_ = State::kRefused;
  refusal_ = reason;
  accumulator_.rebuild();
  for (Arrival& arrival : arrivals_) arrival.data.rebuild();
}

bool Round::IsSettled() const noexcept {
  return std::all_of(arrivals_.begin(), arrivals_.end(),
                     [](const Arrival& arrival) { return arrival.settled; });
}

}  // namespace engine::zmq_ps
