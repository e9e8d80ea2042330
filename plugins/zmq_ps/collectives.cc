// A round is one slice of one transfer. It is open from the first push on and ends in one of two
// ways: when every rank has pushed, or is excused, the pushes are reduced in the order of the ranks
// and all are answered; or it is refused, and stays until every rank has come for the refusal.
//
// Elements are added in the order of the ranks whatever the order of arrival, so that a sum of
// floats is the same in every run. What comes early waits in the memory that it was received in.
#include "collectives.h"

#include <algorithm>
#include <utility>

#include "kit/reduce.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kBlockElements = 4096;

struct Fold {
  SliceSpec spec;
  std::vector<::zmq::message_t> inputs;  // two at least

  // Block by block, so that the sum stays in the cache. The result is where the first input was.
  void Run() {
    const kit::ReduceKernels& kernels = kit::kReduceKernels.For(spec.dtype, spec.reduction);
    const size_t element = SizeOf(spec.dtype), count = static_cast<size_t>(spec.count);
    const bool in_place = kernels.accumulator_bytes == element;
    char block[kBlockElements * kit::kMaxAccumulatorBytes];
    for (size_t begin = 0; begin < count; begin += kBlockElements) {
      const size_t length = std::min(kBlockElements, count - begin);
      const auto at = [&](size_t i) { return inputs[i].data<char>() + begin * element; };
      char* const sum = in_place ? at(0) : block;
      if (!in_place) kernels.load(sum, at(0), length);
      for (size_t i = 1; i < inputs.size(); ++i) kernels.fold(sum, at(i), length);
      if (!in_place) kernels.store(at(0), sum, length);
    }
  }
};

}  // namespace

// A rank that disagrees counts as arrived: the refusal is for it, too, and nobody waits for it.
void Collectives::Handle(const Header& push, ::zmq::message_t body) {
  Session& session = sessions_[push.worker];
  Round& round = FindOrOpen(push);
  const Status agrees = Check(round, push);
  Arrival& arrival = round.arrivals[push.worker];
  if (agrees.ok()) arrival.data = std::move(body);
  arrival.arrived = true;
  arrival.request = push.request;
  if (!round.refusal.ok()) {
    session.Answer(push.request, round.refusal, {});
    EraseIfOver(round);
  } else if (!agrees.ok()) {
    Refuse(round, agrees);
  } else if (const auto lost = FindLost(round)) {
    Refuse(round, *lost);
  } else {
    Advance(round);
  }
}

Collectives::Round& Collectives::FindOrOpen(const Header& push) {
  const RoundId id{push.key, push.round, push.slice};
  const auto found = rounds_.find(id);
  if (found != rounds_.end()) return *found->second;
  if (push.key == 0) last_keyless_round_ = std::max(last_keyless_round_, push.round);
  auto round = std::make_unique<Round>();
  round->id = id;
  round->first = push;
  round->arrivals.resize(sessions_.size());
  return *rounds_.emplace(id, std::move(round)).first->second;
}

// A sum of different things would be worse than none: everything but buffers must be equal.
Status Collectives::Check(const Round& round, const Header& push) const {
  const Text what = Describe(push);
  if (round.arrivals[push.worker].arrived) {
    return Blame(push.worker, "rank %u submitted %s twice", push.worker, what.c_str());
  }
  if (round.arrivals[push.worker].excused) {
    return Blame(push.worker, "rank %u came back after %s had begun without it", push.worker,
                 what.c_str());
  }
  if (push.spec == round.first.spec) return {};
  return Blame(push.worker,
               "rank %u submitted %s where rank %u submitted %s: ranks must give equal keys to "
               "equal transfers, and cut them alike (slice_bytes)",
               push.worker, what.c_str(), round.first.worker, Describe(round.first).c_str());
}

std::vector<uint32_t> Collectives::Missing(const Round& round) const {
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < round.arrivals.size(); ++i) {
    if (!round.arrivals[i].arrived && !round.arrivals[i].excused) missing.push_back(i);
  }
  return missing;
}

// Excuses ranks that left, where a run goes on without them; else why the round never ends.
std::optional<Status> Collectives::FindLost(Round& round) const {
  const SliceSpec& spec = round.first.spec;
  for (const uint32_t worker : Missing(round)) {
    const Status* const left = sessions_[worker].left();
    if (!left) continue;
    const bool alone_has_it =
        !Reduces(spec.operation) && Contributes(spec, worker) && spec.count > 0;
    if (!skips_lost_ || alone_has_it) return *left;
    round.arrivals[worker].excused = true;
  }
  return std::nullopt;
}

void Collectives::Advance(Round& round) {
  if (round.folding || !Missing(round).empty()) return;
  auto fold = std::make_shared<Fold>();
  fold->spec = round.first.spec;
  for (uint32_t i = 0; i < round.arrivals.size(); ++i) {
    const bool brings = round.arrivals[i].arrived && Contributes(fold->spec, i);
    if (brings && fold->spec.count > 0) fold->inputs.push_back(std::move(round.arrivals[i].data));
  }
  if (fold->inputs.empty()) return Finish(round, {});
  if (fold->inputs.size() == 1) return Finish(round, std::move(fold->inputs.front()));
  round.folding = true;
  // The round may have been refused by then, but while it folds it is not erased.
  offload_.Run(
      fold->inputs.size() * fold->spec.bytes(), [fold] { fold->Run(); },
      [this, fold, &round] {
        round.folding = false;
        if (!round.refusal.ok()) return EraseIfOver(round);
        Finish(round, std::move(fold->inputs.front()));
      });
}

// All answers share the memory of the result.
void Collectives::Finish(Round& round, ::zmq::message_t result) {
  for (uint32_t i = 0; i < round.arrivals.size(); ++i) {
    if (round.arrivals[i].request == 0) continue;
    ::zmq::message_t body;
    if (Receives(round.first.spec, i)) body.copy(result);
    sessions_[i].Answer(round.arrivals[i].request, {}, std::move(body));
  }
  rounds_.erase(RoundId(round.id));
}

void Collectives::Refuse(Round& round, const Status& reason) {
  round.refusal = reason;
  for (uint32_t i = 0; i < round.arrivals.size(); ++i) {
    round.arrivals[i].data.rebuild();
    if (round.arrivals[i].request == 0) continue;
    sessions_[i].Answer(round.arrivals[i].request, reason, {});
  }
  EraseIfOver(round);
}

// A refused round goes when everybody who may still come has come.
void Collectives::EraseIfOver(const Round& round) {
  if (round.refusal.ok() || round.folding) return;
  for (const uint32_t worker : Missing(round)) {
    if (!sessions_[worker].left()) return;
  }
  rounds_.erase(RoundId(round.id));
}

// A list, because what is done to a round may erase it.
std::vector<Collectives::Round*> Collectives::OpenRounds() {
  std::vector<Round*> open;
  for (const auto& [id, round] : rounds_) {
    if (round->refusal.ok()) open.push_back(round.get());
  }
  return open;
}

// Requests of the rank are not answered any more: its next process numbers its own from one again.
// What it has pushed stays in the sum.
void Collectives::RankLeft(uint32_t worker) {
  std::vector<Round*> refused;
  for (const auto& [id, round] : rounds_) {
    round->arrivals[worker].request = 0;
    if (!round->refusal.ok()) refused.push_back(round.get());
  }
  for (const Round* const round : refused) EraseIfOver(*round);
  for (Round* const round : OpenRounds()) {
    if (const auto lost = FindLost(*round)) {
      Refuse(*round, *lost);
    } else {
      Advance(*round);
    }
  }
}

std::vector<uint32_t> Collectives::Missing(const Header& push) const {
  const auto found = rounds_.find({push.key, push.round, push.slice});
  return found == rounds_.end() ? std::vector<uint32_t>() : Missing(*found->second);
}

void Collectives::Refuse(const Header& push, const Status& reason) {
  const auto found = rounds_.find({push.key, push.round, push.slice});
  if (found != rounds_.end()) Refuse(*found->second, reason);
}

}  // namespace engine::zmq_ps
