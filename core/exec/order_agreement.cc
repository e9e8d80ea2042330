// A scheduler with a static order needs no message. With TransferOrder::kLeader rank 0 posts a
// ticket for each transfer as it starts it; the others start what the tickets say, in that order,
// each as soon as it is ready there. Rank 0 has several transfers under way, so the tickets of the
// next ones travel while the network is busy with those before.
//
// The order is agreed on whatever the communicator says of it (CommunicatorTraits::ordered): where
// transfers meet in any order, two ranks whose schedulers spend a credit on different ones still
// wait for each other for ever. A static order is the same on all ranks or the scheduler is wrong; a
// communicator that sees transfers with different ids meet fails both, and says what the other is.
//
// Numbers are given in the order of submission, by the one thread that pumps (step_runner.cc) or by
// the thread of the rank between steps, so a number names the same transfer on all ranks unless
// they disagree.
#include "core/exec/order_agreement.h"

#include <cstring>

namespace engine::exec {

OrderAgreement::OrderAgreement(const TaskGraph& graph, const RankInfo& rank, bool leads,
                               base::Store* store)
    : graph_(graph), rank_(rank), leads_(leads), store_(store) {
  ENGINE_CHECK(!leads || store != nullptr, "ranks that agree on an order need a store");
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
    return Status::Error(StatusCode::kInternal, "rank 0 announced a transfer that cannot be next");
  }
  // Rank 0 may be ahead: transfers outside of a step, such as those of an evaluation, come before.
  const auto id = static_cast<uint32_t>(task);
  if (sequence > sequence_ + 1 || !loop.FollowTransfer(id)) return trace::kNoTask;
  tickets_.pop_front();
  return id;
}

}  // namespace engine::exec
