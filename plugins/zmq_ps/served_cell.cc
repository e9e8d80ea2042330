// A worker's clock is the last step of its pushes that was applied. A pull of step t by worker w is
// answered from the newest values, as soon as values are there, no update runs, w's own push of
// step t was applied, and
//   kSync     that is all: the update of step t is made of the pushes of all workers
//   kBounded  every other worker that counts has a clock of at least t - staleness
//   kAsync    that is all
// A pull of step 0 waits for the own pushes that have arrived.
//
// Who counts (kBounded): from the start every worker, with the step before the first push that the
// cell saw as its clock until it pushes itself; not one that was lost; one that joined in its place
// from its first push on. If that is of step s and the smallest clock of the others is c > s - 1,
// then c - (s - 1) is added to its clock from then on: it is not waited for while it repeats what
// the others did long ago. Pulls go by the steps that workers name, so that of all waiting pulls
// the one with the smallest step can always be answered, and nobody waits for ever.
//
// The number of an update (UpdateCall::step) is the step with kSync; else the number of updates,
// but at least the step: an optimizer that corrects a bias needs to know how often it was called.
//
// Invariants:
//   arrays_[0] is empty until values are stored: no update and no answer before that
//   busy_ means that a task has the arrays: nobody else reads or writes them, so Store is refused
//     and pulls wait
//   failure_ is for good: what is pending is answered with it, and what comes is refused
//   a source's pushes are in the order of their steps, and each step is accepted once
//   kSync: the first pushes of all sources that have one are of one step, with one learning rate; but
//     while an update runs, others may come behind one that it took, and are compared at its end
#include "served_cell.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "wire.h"

namespace engine::zmq_ps {
namespace {

// Of a sum whose parts have this weight together.
float Divisor(float weight) {
  return weight > 0 ? weight : 1;
}

// Of one worker at one cell. It has one, unless it pushes without pulling or took the place of
// another.
constexpr size_t kMaxPushes = 4;

// Index in arrays_.
size_t ArrayOf(const Header& request) noexcept {
  return static_cast<size_t>(1 + std::max(request.served.state, -1));
}

}  // namespace

ServedCell::ServedCell(const CellRules& rules, uint32_t worker, CellSpec spec,
                       std::span<const Presence> presence)
    : rules_(rules),
      spec_(std::move(spec)),
      first_worker_(worker),
      sources_(presence.size()),
      task_{.cell = this,
            .spec = &spec_,
            .optimizer = rules.optimizer,
            .arrays = size_t{1} + rules.states} {
  for (size_t i = 0; i < presence.size(); ++i) sources_[i].presence = presence[i];
}

Status ServedCell::CheckState(const Header& request) const {
  if (request.served.state < static_cast<int32_t>(rules_.states)) return {};
  return Wrong(request, "a state that the optimizer does not have");
}

Status ServedCell::Store(const Header& request, const ::zmq::message_t& data) {
  ENGINE_RETURN_IF_ERROR(failure_);
  ENGINE_RETURN_IF_ERROR(CheckState(request));
  if (data.size() != spec_.slice.bytes()) {
    return Wrong(request, "values were stored with more or less data than the slice has");
  }
  if (busy_) return Wrong(request, "values were stored while an update was under way");
  const size_t count = spec_.slice.count;
  ServedArray& array = arrays_[ArrayOf(request)];
  float* const target = array.Allocate(count) ? array.Writable(count) : nullptr;
  if (!target) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for %zu bytes of parameters",
                         data.size());
  }
  std::memcpy(target, data.data(), data.size());
  array.Publish();
  return {};
}

Status ServedCell::Push(const Header& request, std::span<const int32_t> rows,
                        ::zmq::message_t data) {
  ENGINE_RETURN_IF_ERROR(CheckPush(request, spec_, rows, data.size()));
  ENGINE_RETURN_IF_ERROR(failure_);
  const ServedFields& push = request.served;
  Source& source = sources_[request.worker];
  if (push.step <= source.accepted) return {};
  if (source.pushes.size() == kMaxPushes) {
    return Wrong(request, "pushed several steps ahead of its updates: pull before the next push");
  }
  if (sync() && source.pushes.empty()) {
    ENGINE_RETURN_IF_ERROR(CheckAgrees(request.worker, push.step, push.learning_rate));
  }
  ServedGradient& gradient = source.pushes.emplace_back(Waiting{.push = push}).gradient;
  gradient.data = std::move(data);
  gradient.sparse = push.sparse();
  const auto first_row = static_cast<int32_t>(push.sparse() ? spec_.slice.offset / spec_.row : 0);
  for (const int32_t row : rows) gradient.rows.push_back(row - first_row);
  if (!sync()) arrivals_.push_back(request.worker);
  Count(source, push.step);
  source.accepted = push.step;
  return {};
}

// kSync: a push that is the next one of its worker, with the next one of the first other worker.
Status ServedCell::CheckAgrees(uint32_t worker, uint64_t step, float learning_rate) const {
  const auto other = std::find_if(sources_.begin(), sources_.end(),
                                  [](const Source& source) { return !source.pushes.empty(); });
  if (other == sources_.end()) return {};
  const ServedFields& first = other->pushes.front().push;
  const auto first_worker = static_cast<uint32_t>(other - sources_.begin());
  if (step != first.step) {
    return Blame(worker,
                 "rank %u pushed step %" PRIu64 " of bucket %016" PRIx64
                 ", but rank %u pushed step %" PRIu64 ": all ranks must take the same steps",
                 worker, step, spec_.id.bucket, first_worker, first.step);
  }
  if (learning_rate == first.learning_rate) return {};
  return Blame(worker,
               "rank %u pushed step %" PRIu64 " of bucket %016" PRIx64
               " with learning rate %.9g, but rank %u with %.9g: all ranks must have the same "
               "schedule",
               worker, step, spec_.id.bucket, static_cast<double>(learning_rate), first_worker,
               static_cast<double>(first.learning_rate));
}

void ServedCell::Count(Source& source, uint64_t step) noexcept {
  if (!origin_) origin_ = step - 1;
  if (source.presence != Presence::kJoined) return;
  const uint64_t others = SmallestClock();
  source.ahead = others != UINT64_MAX && others > step - 1 ? others - (step - 1) : 0;
  source.presence = Presence::kCounts;
}

// Step 0 stands for the step before the first one that anybody pushed to this cell: a run that was
// resumed does not begin at 1.
uint64_t ServedCell::ClockOf(const Source& source, uint64_t step) const noexcept {
  return (step != 0 ? step : origin_.value_or(0)) + source.ahead;
}

uint64_t ServedCell::SmallestClock() const noexcept {
  uint64_t smallest = UINT64_MAX;
  for (const Source& source : sources_) {
    if (source.presence != Presence::kCounts) continue;
    smallest = std::min(smallest, ClockOf(source, source.applied));
  }
  return smallest;
}

// Pulls of a former process are of no use to the next one; its pushes are applied all the same.
void ServedCell::SetPresence(uint32_t worker, Presence presence) {
  sources_[worker].presence = presence;
  std::erase_if(pulls_, [&](const WaitingPull& pull) { return pull.request.worker == worker; });
}

bool ServedCell::due() const noexcept {
  if (busy_ || !failure_.ok() || !stored()) return false;
  if (!sync()) return !arrivals_.empty();
  return std::none_of(sources_.begin(), sources_.end(),
                      [](const Source& source) { return source.pushes.empty(); });
}

// The task belongs to the cell, and is filled anew for each update: nothing is allocated but room
// for the inputs.
UpdateTask* ServedCell::Start() {
  if (!due()) return nullptr;
  const Status prepared = PrepareArrays();
  if (!prepared.ok()) {
    Fail(prepared);
    return nullptr;
  }
  if (sync()) {
    TakeOfAll();
  } else {
    TakeOldest();
  }
  busy_ = true;
  return &task_;
}

// An array that an answer still refers to is not changed: the update reads it and writes another
// version, which becomes the newest when it is done.
Status ServedCell::PrepareArrays() {
  const size_t count = spec_.slice.count;
  for (size_t i = 0; i < task_.arrays; ++i) {
    ServedArray& array = arrays_[i];
    task_.to[i] = array.Allocate(count) ? array.Writable(count) : nullptr;
    if (!task_.to[i]) {
      return Status::Error(StatusCode::kResourceExhausted,
                           "no memory for the update of %zu parameters", count);
    }
    task_.from[i] = array.newest();
  }
  return {};
}

ServedCell::Waiting ServedCell::Take(uint32_t worker) {
  std::vector<Waiting>& pushes = sources_[worker].pushes;
  Waiting taken = std::move(pushes.front());
  pushes.erase(pushes.begin());
  return taken;
}

// In the order of the workers, weights too: so the sum does not depend on who came first.
void ServedCell::TakeOfAll() {
  float weight = 0;
  for (uint32_t worker = 0; worker < sources_.size(); ++worker) {
    auto [push, gradient] = Take(worker);
    weight += push.weight;
    task_.step = push.step;
    task_.learning_rate = push.learning_rate;
    task_.inputs.push_back(std::move(gradient));
  }
  task_.gradient_scale = 1 / Divisor(weight);
}

void ServedCell::TakeOldest() {
  applying_ = arrivals_.front();
  arrivals_.erase(arrivals_.begin());
  auto [push, gradient] = Take(applying_);
  applying_step_ = push.step;
  task_.step = std::max(task_.step + 1, push.step);
  task_.learning_rate = push.learning_rate;
  task_.gradient_scale = 1 / Divisor(push.weight);
  task_.inputs.push_back(std::move(gradient));
}

void ServedCell::Finish() {
  busy_ = false;
  if (task_.status.ok()) {
    Updated();
  } else {
    Fail(task_.status.WithContext("the update of slice %u of bucket %016" PRIx64
                                  " at step %" PRIu64,
                                  spec_.id.slice, spec_.id.bucket, task_.step));
  }
  task_.inputs.clear();
}

// Pushes that came during the update begin the next one; one of another step than the others fails
// the cell, because the push was answered already.
void ServedCell::Updated() {
  for (size_t i = 0; i < task_.arrays; ++i) arrays_[i].Publish();
  if (!sync()) {
    sources_[applying_].applied = applying_step_;
    return;
  }
  for (Source& source : sources_) source.applied = task_.step;
  for (uint32_t worker = 0; worker < sources_.size(); ++worker) {
    if (sources_[worker].pushes.empty()) continue;
    const ServedFields& push = sources_[worker].pushes.front().push;
    const Status agrees = CheckAgrees(worker, push.step, push.learning_rate);
    if (!agrees.ok()) return Fail(agrees);
  }
}

// Memory of pushes goes back: nothing will be made of them.
void ServedCell::Fail(const Status& reason) {
  failure_ = reason;
  for (Source& source : sources_) source.pushes.clear();
  arrivals_.clear();
}

Status ServedCell::Pull(const Header& request, std::span<const int32_t> rows) {
  ENGINE_RETURN_IF_ERROR(failure_);
  ENGINE_RETURN_IF_ERROR(CheckState(request));
  ENGINE_RETURN_IF_ERROR(CheckRows(request, spec_, rows));
  pulls_.push_back({request, {rows.begin(), rows.end()}});
  return {};
}

// Who has not pushed what the pull needs, by what was accepted: an update that is due or under way
// is nobody's fault. Nobody's values come before rank 0's.
std::vector<uint32_t> ServedCell::Missing(const Header& pull) const {
  if (!stored()) return {0};
  std::vector<uint32_t> missing;
  const uint64_t step = pull.served.step;
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    const bool pushed = i == pull.worker || sync()
                            ? source.accepted >= step
                            : source.presence != Presence::kCounts ||
                                  ClockOf(source, source.accepted) + rules_.staleness >= step;
    if (!pushed) missing.push_back(i);
  }
  return missing;
}

void ServedCell::Answer(std::vector<PullAnswer>* out) {
  if (pulls_.empty()) return;
  const uint64_t smallest = SmallestClock();
  std::erase_if(pulls_, [&](const WaitingPull& pull) {
    if (!IsReady(pull, smallest)) return false;
    out->push_back(AnswerTo(pull));
    return true;
  });
}

bool ServedCell::IsReady(const WaitingPull& pull, uint64_t smallest) const noexcept {
  if (!failure_.ok()) return true;
  if (!stored() || busy_) return false;
  const Source& own = sources_[pull.request.worker];
  const uint64_t step = pull.request.served.step;
  if (step == 0) return own.applied >= own.accepted;
  if (own.applied < step) return false;
  return sync() || smallest >= step || step - smallest <= rules_.staleness;
}

PullAnswer ServedCell::AnswerTo(const WaitingPull& pull) {
  PullAnswer answer;
  answer.worker = pull.request.worker;
  answer.request = pull.request.request;
  answer.status = failure_;
  if (!failure_.ok()) return answer;
  const size_t count = spec_.slice.count;
  ServedArray& array = arrays_[ArrayOf(pull.request)];
  if (!array.Allocate(count)) {
    answer.status =
        Status::Error(StatusCode::kResourceExhausted, "no memory for %zu parameters", count);
  } else {
    answer.data = pull.request.served.sparse() ? Gather(pull, array.newest()) : array.Share(count);
  }
  return answer;
}

::zmq::message_t ServedCell::Gather(const WaitingPull& pull, const float* values) const {
  const size_t row_bytes = spec_.row * sizeof(float);
  const auto first_row = static_cast<int32_t>(spec_.slice.offset / spec_.row);
  ::zmq::message_t rows(pull.rows.size() * row_bytes);
  auto* out = static_cast<char*>(rows.data());
  for (const int32_t row : pull.rows) {
    std::memcpy(out, values + static_cast<size_t>(row - first_row) * spec_.row, row_bytes);
    out += row_bytes;
  }
  return rows;
}

}  // namespace engine::zmq_ps
