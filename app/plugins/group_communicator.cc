// The numbers of ranks are turned at two places: in every Status that leaves the group (Outside), and in
// the reason of an Abort, which goes in and comes back from there (Abort adds the size of the group,
// which no rank of it reaches).
#include "app/plugins/group_communicator.h"

#include <atomic>
#include <cstddef>
#include <new>
#include <string_view>
#include <utility>

namespace engine::plugins {
namespace {

// From a ring; it costs one atomic exchange and no lock.
class GroupWork final : public WorkBase {
 public:
  explicit GroupWork(std::shared_ptr<const Group> group) noexcept : group_(std::move(group)) {}

  WorkState state() const noexcept override { return inner_->state(); }
  int64_t started_ns() const noexcept override { return inner_->started_ns(); }
  Status WaitHost(int64_t timeout_ms) noexcept override {
    return group_->Outside(inner_->WaitHost(timeout_ms));
  }
  Status WaitStream(Stream* stream) noexcept override {
    return group_->Outside(inner_->WaitStream(stream));
  }
  void OnDone(void (*callback)(void* context), void* context) noexcept override {
    inner_->OnDone(callback, context);  // which may release this work
  }
  void Release() noexcept override {
    inner_->Release();
    GiveUp(Use::kFree);
  }

 private:
  friend class GroupCommunicator;
  enum class Use { kFree, kHeld, kLeft };  // a caller holds it; the communicator is gone

  // The caller and the communicator both do in the end.
  void GiveUp(Use use) noexcept {
    if (use_.exchange(use, std::memory_order_acq_rel) != Use::kHeld) delete this;
  }

  const std::shared_ptr<const Group> group_;
  Work* inner_ = nullptr;
  std::atomic<Use> use_{Use::kFree};
  GroupWork* next_ = this;
};

class GroupCommunicator final : public CommunicatorBase {
 public:
  GroupCommunicator(std::unique_ptr<Communicator> made, Group group)
      : made_(std::move(made)), group_(std::make_shared<const Group>(std::move(group))) {}
  ~GroupCommunicator() override {
    GroupWork* work = last_ ? std::exchange(last_->next_, nullptr) : nullptr;
    while (work) std::exchange(work, work->next_)->GiveUp(GroupWork::Use::kLeft);
  }

  void* Query(std::string_view id) noexcept override { return made_->Query(id, 0); }
  CommunicatorTraits traits() const noexcept override { return made_->traits(); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    GroupWork* const work = Free();
    if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    work->use_.store(GroupWork::Use::kHeld, std::memory_order_relaxed);
    last_ = work;
    const Status status = made_->Submit(transfer, &work->inner_);  // a callback may submit too
    if (status.ok()) *out = work;
    if (!status.ok()) work->use_.store(GroupWork::Use::kFree, std::memory_order_relaxed);
    return group_->Outside(status);
  }
  void Abort(const Status& reason) noexcept override {
    const auto size = static_cast<int32_t>(group_->ranks.size());
    made_->Abort(reason.rank() < 0 ? reason : reason.WithRank(reason.rank() + size));
  }

 private:
  // The one that was used longest ago of those that are free, or a new one.
  GroupWork* Free() noexcept {
    for (GroupWork* work = last_; work != nullptr;) {
      work = work->next_;
      if (work->use_.load(std::memory_order_acquire) == GroupWork::Use::kFree) return work;
      if (work == last_) break;
    }
    auto* const work = new (std::nothrow) GroupWork(group_);
    if (!work) return nullptr;
    if (last_) work->next_ = std::exchange(last_->next_, work);
    return last_ = work;
  }

  const std::unique_ptr<Communicator> made_;
  const std::shared_ptr<const Group> group_;
  GroupWork* last_ = nullptr;  // used last, in a ring by next_
};

}  // namespace

Status Group::Outside(const Status& status) const noexcept {
  const auto size = static_cast<int32_t>(ranks.size());
  if (status.ok() || size == 0 || status.rank() < 0) return status;
  if (status.rank() >= size) return status.WithRank(status.rank() - size);
  const int32_t rank = ranks[static_cast<size_t>(status.rank())];
  return status.WithContext("rank %d, which is rank %d of '%s'", rank, status.rank(), name.c_str())
      .WithRank(rank);
}

std::unique_ptr<Communicator> AroundGroup(std::unique_ptr<Communicator> made, Group group) {
  if (group.ranks.empty()) return made;
  return std::make_unique<GroupCommunicator>(std::move(made), std::move(group));
}

}  // namespace engine::plugins
