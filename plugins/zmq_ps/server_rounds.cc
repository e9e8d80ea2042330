// Collectives: slices that meet by key and round.
#include <algorithm>
#include <utility>

#include "server_loop.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kMaxRounds = 1 << 20;
// Less is folded by the loop itself: handing it over would take longer.
constexpr size_t kFoldHereBytes = 32 << 10;

}  // namespace

void ServerLoop::HandleCollective(const Header& header, ::zmq::message_t& body) {
  Worker& worker = workers_[header.worker];
  Round* const round = FindOrOpen(header);
  if (!round) return Complain("too many transfers at once: a push was dropped");
  const Status agrees = round->Check(header);
  worker.seen.Mark(header.request);
  if (round->HasArrived(header.worker)) return Refuse(*round, agrees);
  worker.pending[header.request] = {.round = round, .heard = Clock::now()};
  if (agrees.ok()) {
    round->Arrive(header, std::move(body));
  } else {
    round->Arrive(header, {});
    Refuse(*round, agrees);
  }
  if (round->state() != Round::State::kOpen) return QueueAnswer(header.worker, header.request);
  if (!failure_.ok()) return Refuse(*round, failure_);
  if (const auto hopeless = Hopeless(*round)) return Refuse(*round, *hopeless);
  Advance(*round);
}

Round* ServerLoop::FindOrOpen(const Header& push) {
  const RoundId id{push.key, push.round, push.slice};
  const auto found = rounds_.find(id);
  if (found != rounds_.end()) return found->second.get();
  if (rounds_.size() >= kMaxRounds) return nullptr;
  if (push.key == 0) last_keyless_round_ = std::max(last_keyless_round_, push.round);
  return rounds_.emplace(id, std::make_unique<Round>(id, push, settings_.workers))
      .first->second.get();
}

void ServerLoop::Advance(Round& round) {
  ReduceTask task;
  if (round.Advance(&task)) return Fold(round, std::move(task));
  if (round.state() == Round::State::kComplete) QueueAnswers(round);
}

void ServerLoop::Fold(Round& round, ReduceTask task) {
  const bool moves_only =
      task.accumulator.size() == 0 && task.inputs.size() == 1 && task.kernels->in_place;
  if (!moves_only && task.bytes() > kFoldHereBytes) {
    pool_->Submit(pool_->Choose(), std::move(task));
    return;
  }
  zmq_ps::Run(task);
  round.Folded(std::move(task));
  Advance(round);
}

void ServerLoop::AfterTask(PoolTask task) {
  if (auto* const update = std::get_if<UpdateTask*>(&task)) return table_->Finished(*update);
  AfterFold(std::get<ReduceTask>(std::move(task)));
}

void ServerLoop::AfterFold(ReduceTask task) {
  Round& round = *static_cast<Round*>(task.context);
  round.Folded(std::move(task));
  if (round.state() == Round::State::kOpen) return Advance(round);
  if (round.IsSettled()) rounds_.erase(RoundId(round.id()));
}

void ServerLoop::Refuse(Round& round, const Status& reason) {
  if (round.state() != Round::State::kOpen) return;
  round.Refuse(reason);
  QueueAnswers(round);
}

void ServerLoop::RefuseOpenRounds(const Status& reason) {
  std::vector<Round*> open;
  for (const auto& [id, round] : rounds_) {
    if (round->state() == Round::State::kOpen) open.push_back(round.get());
  }
  for (Round* round : open) Refuse(*round, reason);
  RefuseServed(reason);
}

std::optional<Status> ServerLoop::Hopeless(Round& round) const {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].left || round.HasArrived(i)) continue;
    if (!settings_.allows_losses() || !round.Excuse(i)) return *workers_[i].left;
  }
  return std::nullopt;
}

// Erases the round when nobody wants it any more.
void ServerLoop::Settle(Round& round, uint32_t worker) {
  round.Settle(worker);
  if (round.state() == Round::State::kOpen || round.busy() || !round.IsSettled()) return;
  rounds_.erase(RoundId(round.id()));
}

void ServerLoop::QueueAnswers(Round& round) {
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].left) round.Settle(i);
    if (!workers_[i].left && round.HasArrived(i)) QueueAnswer(i, round.RequestOf(i));
  }
}

}  // namespace engine::zmq_ps
