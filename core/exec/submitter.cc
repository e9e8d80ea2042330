// A work is released when it is terminal, or kept until Drain: what it moves is the caller's again
// only then.
#include "core/exec/submitter.h"

#include <utility>

#include "core/base/deadline.h"
#include "core/plugin/plugin_set.h"

namespace engine::exec {

Submitter::Submitter(Communicator& communicator, const std::string& name, base::CallWatch* watch)
    : communicator_(communicator),
      name_(name),
      groups_(Query<GroupedTransfers>(communicator)),
      wire_(Query<WireProgress>(communicator)),
      watch_(watch) {}

Status Submitter::Submit(Array<const Transfer> transfers, Work** work) {
  *work = nullptr;
  const std::lock_guard lock(mutex_);
  ENGINE_RETURN_IF_ERROR(Named(transfers.size() == 1 ? communicator_.Submit(transfers[0], work)
                                                     : groups_->SubmitGroup(transfers, work)));
  if (*work != nullptr) return {};
  return Status::Error(StatusCode::kPlugin, "communicator '%s' took %s and gave no work for it",
                       name_.c_str(), Name(transfers[0].kind));
}

Status Submitter::Named(const Status& answer) const {
  return plugin::Answer(answer).WithContext("communicator '%s'", name_.c_str());
}

Status Submitter::Take(Work** work) const {
  const WorkState state = *work == nullptr ? WorkState::kPending : (*work)->state();
  const Status status = state == WorkState::kPending ? Status() : (*work)->WaitHost(0);
  if (state != WorkState::kDone && (state != WorkState::kFailed || status.ok())) {
    return plugin::BadAnswer("communicator", name_, "a transfer as ended that has no end");
  }
  std::exchange(*work, nullptr)->Release();
  return Named(status);
}

Status Submitter::Run(Array<const Transfer> transfers, Stream* follower) {
  const int64_t timeout_ms = transfers[0].timeout_ms + kGraceMs;
  if (watch_ != nullptr && (run_ == nullptr || run_->limit_ms <= timeout_ms)) {
    run_ = watch_->Describe("communicator '" + name_ + "' has not returned from Submit or WaitHost",
                            timeout_ms + kGraceMs);
  }
  const base::OpenCall open(watch_, base::CallWatch::kCompute, run_);
  Work* work = nullptr;
  ENGINE_RETURN_IF_ERROR(Submit(transfers, &work));
  if (follower == nullptr) return Await(work, timeout_ms);
  const Status status = Named(work->WaitStream(follower));
  work->Release();
  return status;
}

Status Submitter::Await(Work* work, int64_t timeout_ms) {
  for (;;) {
    const uint64_t before = bytes_moved();
    const base::OpenCall again(watch_, base::CallWatch::kCompute, run_);
    Status status = work->WaitHost(timeout_ms);
    const bool is_late = !status.ok() && work->state() == WorkState::kPending;
    if (is_late && bytes_moved() != before) continue;
    status = is_late ? Named(status) : Take(&work);
    if (work != nullptr) not_ended_.push_back(work);
    return status;
  }
}

bool Submitter::Drain(int64_t timeout_ms) {
  const base::TimePoint deadline = base::DeadlineIn(timeout_ms);
  std::erase_if(not_ended_, [&](Work* work) {
    (void)work->WaitHost(base::RemainingMs(deadline, static_cast<int>(timeout_ms)));
    const bool ended = work->state() != WorkState::kPending;
    if (ended) work->Release();
    return ended;
  });
  return not_ended_.empty();
}

}  // namespace engine::exec
