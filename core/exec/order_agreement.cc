// A scheduler with a static order needs no message. With TransferOrder::kLeader rank 0 posts a
// ticket for each transfer as it starts it; the others start what the tickets say, in that order,
// each as soon as it is ready there. Rank 0 has several transfers under way, so the tickets of the
// next ones travel while the network is busy with those before.
//
// Whatever the order came from, every rank logs what it starts. A communicator that sees transfers
// with different ids meet fails them; then the logs are compared, and the first transfer that
// differs is named on every rank.
//
// Numbers are given in the order of submission, by the one thread that pumps (step_runner.cc) or by
// the thread of the rank between steps, so a number names the same transfer on all ranks unless
// they disagree.
#include "core/exec/order_agreement.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/base/deadline.h"

namespace engine::exec {
namespace {

constexpr size_t kLogCapacity = 256;
// For the logs of other ranks after a failure; they fail at about the same time.
constexpr int64_t kCompareMs = 1000;

}  // namespace

OrderAgreement::OrderAgreement(const TaskGraph& graph, const RankInfo& rank,
                               const CommunicatorTraits& traits, bool leads, base::Store* store)
    : graph_(graph),
      rank_(rank),
      ordered_(traits.ordered != 0),
      leads_(leads),
      store_(store),
      log_(kLogCapacity) {
  ENGINE_CHECK(!leads || store != nullptr, "ranks that agree on an order need a store");
}

void OrderAgreement::Number(Transfer* transfer, uint32_t task) {
  transfer->sequence = ++sequence_;
  log_[sequence_ % kLogCapacity] = {.transfer = *transfer, .task = task};
}

Status OrderAgreement::Announce(const Transfer& transfer, uint32_t task) {
  if (!leads_ || rank_.rank != 0) return {};
  const Ticket ticket{.sequence = transfer.sequence, .task = task};
  return store_->Post({reinterpret_cast<const char*>(&ticket), sizeof(ticket)});
}

// Rank 0 cannot be more than a step ahead.
Status OrderAgreement::TakeTicket(std::string_view text) {
  if (text.size() != sizeof(Ticket) || tickets_.size() == 2 * graph_.tasks.size()) {
    return Status::Error(StatusCode::kInternal, "rank 0 announces transfers that cannot be");
  }
  std::memcpy(&tickets_.emplace_back(), text.data(), sizeof(Ticket));
  return {};
}

Result<uint32_t> OrderAgreement::NextTicket(StepLoop& loop) {
  if (tickets_.empty()) return trace::kNoTask;
  const auto [sequence, task] = tickets_.front();
  if (task >= graph_.tasks.size() || sequence <= sequence_) {
    return Status::Error(StatusCode::kInternal,
                         "rank 0 announced transfer %llu (task %llu) where transfer %llu is next",
                         static_cast<unsigned long long>(sequence),
                         static_cast<unsigned long long>(task),
                         static_cast<unsigned long long>(sequence_ + 1));
  }
  // Rank 0 may be ahead: transfers outside of a step, such as those of an evaluation, come before.
  const auto id = static_cast<uint32_t>(task);
  if (sequence > sequence_ + 1 || !loop.FollowTransfer(id)) return trace::kNoTask;
  tickets_.pop_front();
  return id;
}

Status OrderAgreement::Explain(Status failure) const {
  const bool may_differ =
      failure.code() == StatusCode::kTimeout || failure.code() == StatusCode::kInvalidArgument;
  if (!may_differ || store_ == nullptr || !ordered_) return failure;
  const auto key = [](int32_t of) { return "order/log/" + std::to_string(of); };
  std::string log = "\n";
  for (uint64_t number = FirstLogged(); number <= sequence_; ++number) {
    log += LineOf(number) + '\n';
  }
  if (!store_->Set(key(rank_.rank), log).ok()) return failure;
  const base::TimePoint deadline = base::DeadlineIn(kCompareMs);
  for (int32_t other = 0; other < rank_.world_size; ++other) {
    if (other == rank_.rank) continue;
    const auto published = store_->Get(key(other), base::RemainingMs(deadline, kCompareMs));
    // One that has none did not fail, or is gone.
    if (published.ok()) ENGINE_RETURN_IF_ERROR(Compare(other, *published));
  }
  return failure;
}

// Of the newest transfers; the place of a transfer in log_ is its number modulo the capacity.
uint64_t OrderAgreement::FirstLogged() const {
  return sequence_ < kLogCapacity ? 1 : sequence_ - kLogCapacity + 1;
}

// log = '\n', line, '\n', ...    line = number of the transfer, key, what a message says of it
std::string OrderAgreement::LineOf(uint64_t number) const {
  const auto& [transfer, task] = log_[number % kLogCapacity];
  const bool in_step = task < graph_.tasks.size();
  return std::to_string(number) + ' ' + std::to_string(transfer.key) + " '" +
         (in_step ? graph_.tasks[task].name : "a transfer outside of a step") + "' (" +
         Name(transfer.kind) + ", " + std::to_string(transfer.count) + " elements of " +
         Name(transfer.dtype) + ')';
}

// The first transfer in both logs that differs, in the same sentence on both ranks.
Status OrderAgreement::Compare(int32_t other, const std::string& log) const {
  const auto shown = [](const std::string& line) {
    return line.substr(std::min(line.find('\''), line.size()));
  };
  for (uint64_t number = FirstLogged(); number <= sequence_; ++number) {
    const std::string mine = LineOf(number);
    const size_t begin = log.find('\n' + std::to_string(number) + ' ') + 1;
    if (begin == 0) continue;
    const std::string theirs = log.substr(begin, log.find('\n', begin) - begin);
    if (theirs == mine) continue;
    const bool first = rank_.rank < other;
    return Status::Error(
        StatusCode::kPlugin,
        "ranks disagree on the order of transfers: as number %llu rank %d started %s and rank %d "
        "%s",
        static_cast<unsigned long long>(number), first ? rank_.rank : other,
        shown(first ? mine : theirs).c_str(), first ? other : rank_.rank,
        shown(first ? theirs : mine).c_str());
  }
  return {};
}

}  // namespace engine::exec
