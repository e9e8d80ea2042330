#include "queued_work.h"

#include <exception>
#include <functional>
#include <utility>

namespace engine::hier {
namespace {

// As late as the last stage.
constexpr int64_t kConfirmMs = 4000;

}  // namespace

Ends::Ends(kit::Failure& failure, kit::Progress& progress)
    : failure_(failure),
      progress_(progress),
      pool_(0, kit::WorkPool::Of<QueuedWork>(std::ref(*this))),
      watcher_(std::make_unique<kit::DeadlineWatcher>("hier_ends", [this](kit::Clock::time_point) {
        Look();
        return kit::Clock::time_point::max();
      })) {}

Ends::~Ends() {
  Stop();
  Look();
}

void Ends::Stop() noexcept {
  std::unique_ptr<kit::DeadlineWatcher> watcher;
  const std::lock_guard lock(mutex_);
  watcher.swap(watcher_);
}

Result<QueuedWork*> Ends::Take(const Transfer& transfer) noexcept {
  ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const work, pool_.Take(transfer));
  return static_cast<QueuedWork*>(work);
}

void Ends::Append(List& list, QueuedWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  work->next = nullptr;
  if (list.head) {
    list.tail->next = work;
  } else {
    list.head = work;
  }
  list.tail = work;
}

// The first of the list, if it waits for no more than `left`.
QueuedWork* Ends::TakeIf(List& list, size_t left) noexcept {
  const std::lock_guard lock(mutex_);
  if (!list.head || list.head->left_ > left) return nullptr;
  return std::exchange(list.head, static_cast<QueuedWork*>(list.head->next));
}

void Ends::Wake(const Status& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = error;
  if (watcher_) watcher_->Watch(kit::Clock::now());
}

// OK while nothing has failed. A failure ends all levels, and so the stages of all works.
Status Ends::Failed() noexcept {
  Status error;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
  }
  return error.ok() ? failure_.reason() : failure_.Fail(error);
}

void Ends::Look() noexcept {
  (void)Failed();
  while (QueuedWork* const work = TakeIf(queued_, 1)) Confirm(work);
  while (QueuedWork* const work = TakeIf(confirmed_, 0)) {
    if (!work->stages_.empty()) work->MarkStarted(work->stages_.front().work->started_ns());
    work->Complete(work->failed() ? Failed() : Status());  // it may be another one now
  }
}

void Ends::Confirm(QueuedWork* work) noexcept {
  Append(confirmed_, work);
  Status status = Failed();
  Work* stage = nullptr;
  if (status.ok() && all_) {
    status = all_->Submit({.kind = TransferKind::kBarrier,
                           .key = work->transfer().key,
                           .timeout_ms = work->transfer().timeout_ms + kConfirmMs},
                          &stage);
  }
  if (stage) work->Add(stage);
  work->EndOne(status);
}

Status QueuedWork::Begin(size_t most_stages) noexcept {
  left_ = 2;
  end_ = nullptr;
  try {
    stages_.reserve(most_stages + 1);
    ends_.Append(ends_.queued_, this);
    return {};
  } catch (const std::exception&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for the stages of a transfer");
  }
}

void QueuedWork::Add(Work* stage) noexcept {
  ++left_;
  stages_.push_back({this, stage});
  stage->OnDone(
      [](void* context) {
        const auto& [whole, work] = *static_cast<Stage*>(context);
        whole->EndOne(work->WaitHost(0));
      },
      &stages_.back());
}

void QueuedWork::EndQueueing(const Status& status) noexcept {
  if (!stages_.empty()) end_ = stages_.back().work;
  EndOne(status);
}

// An error is known before it can count as the end.
void QueuedWork::EndOne(const Status& status) noexcept {
  Ends& ends = ends_;
  ends.progress_.Moved(1);
  if (!status.ok()) {
    (void)Set(kStageFailed);
    ends.Wake(status.WithContext("%s", kit::Describe(transfer()).c_str()));
  }
  if (left_.fetch_sub(1) <= 2) ends.Wake({});
}

Status QueuedWork::WaitStream(Stream* stream) noexcept {
  const bool queues = stream != nullptr && stream->native() != nullptr;
  if (!queues || !end_ || failed()) return PooledWork::WaitStream(stream);
  return end_->WaitStream(stream);
}

void QueuedWork::Drop() noexcept {
  for (const Stage& stage : stages_) stage.work->Release();
  stages_.clear();
}

}  // namespace engine::hier
