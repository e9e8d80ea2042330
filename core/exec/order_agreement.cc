// A scheduler with a static order needs no message. With TransferOrder::kLeader rank 0 posts a
// ticket for each transfer as it starts it; the others start what the tickets say, in that order,
// each as soon as it is ready there. Rank 0 has several transfers under way, so the tickets of the
// next ones travel while the network is busy with those before.
//
// Whatever the order came from, every rank logs what it starts. A digest of the log travels with
// the statistics of each step, so that no wrong sum stays unseen; after a failure the logs are
// compared, and the first transfer that differs is named on every rank.
//
// Numbers are given in the order of submission, by the one thread that pumps (step_runner.cc) or by
// the thread of the rank between steps, so a number names the same transfer on all ranks unless
// they disagree.
#include "core/exec/order_agreement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/hash.h"

namespace engine::exec {
namespace {

constexpr size_t kLogCapacity = 256;
// For the logs of other ranks after a failure; they fail at about the same time.
constexpr int64_t kCompareMs = 1000;

// The lines of a log by their numbers.
std::map<uint64_t, std::string> LinesOf(const std::string& log) {
  std::map<uint64_t, std::string> lines;
  std::istringstream in(log);
  uint64_t number = 0;
  while (in >> number) std::getline(in, lines[number]);
  return lines;
}

}  // namespace

OrderAgreement::OrderAgreement(const TaskGraph& graph, const RankInfo& rank,
                               const CommunicatorTraits& traits, bool leads, base::Store* store)
    : graph_(graph),
      rank_(rank),
      ordered_(traits.ordered != 0),
      measures_only_(traits.no_op != 0),
      leads_(leads),
      store_(store),
      log_(kLogCapacity) {
  ENGINE_CHECK(!leads || store != nullptr, "ranks that agree on an order need a store");
}

void OrderAgreement::Number(Transfer* transfer, uint32_t task) {
  transfer->sequence = ++sequence_;
  log_[logged_++ % kLogCapacity] = {.transfer = *transfer, .task = task};
  digest_ = base::HashOf({transfer->sequence, transfer->key, static_cast<uint64_t>(transfer->count),
                          static_cast<uint64_t>(transfer->kind)},
                         digest_);
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

void OrderAgreement::WriteDigest(float (&bits)[16]) const {
  for (size_t i = 0; i < 16; ++i) bits[i] = (digest_ >> i & 1) != 0 ? 1.0f : 0.0f;
}

Status OrderAgreement::CheckDigest(const StepStatistics& statistics) const {
  if (!ordered_ || measures_only_) return {};
  const auto ranks = static_cast<float>(rank_.world_size);
  for (const float bit : statistics.order_bits) {
    if (bit == 0 || bit == ranks) continue;
    return Status::Error(StatusCode::kInvalidArgument,
                         "ranks disagree on the transfers of the step before this one");
  }
  return {};
}

Status OrderAgreement::Explain(Status failure) const {
  const bool may_differ =
      failure.code() == StatusCode::kTimeout || failure.code() == StatusCode::kInvalidArgument;
  if (!may_differ || store_ == nullptr || !ordered_) return failure;
  Status order = Compare(*store_);
  return order.code() == StatusCode::kPlugin ? std::move(order) : std::move(failure);
}

// log = line, ...    line = number of the transfer, key, what a message says of it
std::string OrderAgreement::LogText() const {
  std::ostringstream text;
  for (uint64_t i = logged_ - std::min<uint64_t>(logged_, kLogCapacity); i < logged_; ++i) {
    const auto& [transfer, task] = log_[i % kLogCapacity];
    const bool in_step = task < graph_.tasks.size();
    text << transfer.sequence << ' ' << transfer.key << " '"
         << (in_step ? graph_.tasks[task].name : "a transfer outside of a step") << "' ("
         << Name(transfer.kind) << ", " << transfer.count << " elements of " << Name(transfer.dtype)
         << ")\n";
  }
  return text.str();
}

// Publishes the own log and looks at those of the other ranks that appear in time.
Status OrderAgreement::Compare(base::Store& store) const {
  const auto key = [](int32_t of) { return "order/log/" + std::to_string(of); };
  const auto issue = [](const std::string& line) { return line.substr(line.find_first_of('\'')); };
  const std::string text = LogText();
  ENGINE_RETURN_IF_ERROR(store.Set(key(rank_.rank), text));
  const std::map<uint64_t, std::string> own = LinesOf(text);
  const base::TimePoint deadline = base::DeadlineIn(kCompareMs);
  for (int32_t other = 0; other < rank_.world_size; ++other) {
    if (other == rank_.rank) continue;
    const auto published = store.Get(key(other), base::RemainingMs(deadline, kCompareMs));
    if (!published.ok()) continue;  // it did not fail, or is gone
    std::map<uint64_t, std::string> theirs = LinesOf(*published);
    for (const auto& [number, mine] : own) {
      const std::string& line = theirs[number];
      if (line.empty() || line == mine) continue;
      // The same sentence on both ranks.
      const bool first = rank_.rank < other;
      return Status::Error(
          StatusCode::kPlugin,
          "ranks disagree on the order of transfers: as number %llu rank %d started %s and rank %d "
          "%s",
          static_cast<unsigned long long>(number), first ? rank_.rank : other,
          issue(first ? mine : line).c_str(), first ? other : rank_.rank,
          issue(first ? line : mine).c_str());
    }
  }
  return {};
}

}  // namespace engine::exec
