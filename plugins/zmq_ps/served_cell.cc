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
//   kSync: collection_.step is that of the first push of every source that has one, or 0
#include "served_cell.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "describe.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

// Of one worker at one cell. A worker has one of each, unless it pushes without pulling, loads, or
// took the place of another.
constexpr size_t kMaxPushes = 4;
constexpr size_t kMaxPulls = 8;

}  // namespace

ServedCell::ServedCell(const CellRules& rules, uint32_t worker, const CellSpec& spec,
                       std::span<const Presence> presence)
    : rules_(rules), spec_(spec), first_worker_(worker), sources_(presence.size()) {
  for (size_t i = 0; i < presence.size(); ++i) sources_[i].presence = presence[i];
  task_.cell = this;
  task_.count = spec_.count;
  task_.row = spec_.row;
  task_.arrays = 1 + rules.states;
  task_.spans = spec_.spans;
  task_.optimizer = rules.optimizer;
}

Status ServedCell::Blame(uint32_t worker, const char* what) const {
  return zmq_ps::Blame(worker, "rank %u, slice %u of unit %016" PRIx64 ": %s", worker,
                       spec_.id.slice, spec_.id.unit, what);
}

Status ServedCell::Store(uint32_t worker, int32_t state, const ::zmq::message_t& data) {
  ENGINE_RETURN_IF_ERROR(failure_);
  if (state >= static_cast<int32_t>(rules_.states)) {
    return Blame(worker, "a state that the optimizer does not have was stored");
  }
  if (data.size() != spec_.count * sizeof(float)) {
    return Blame(worker, "values were stored with more or less data than the slice has");
  }
  if (busy_) return Blame(worker, "values were stored while an update was under way");
  ServedArray& array = arrays_[state < 0 ? 0 : 1 + state];
  float* const target = array.Allocate(spec_.count) ? array.Writable(spec_.count) : nullptr;
  if (!target) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for %zu bytes of parameters",
                         data.size());
  }
  std::memcpy(target, data.data(), data.size());
  array.Publish();
  return {};
}

Status ServedCell::Push(uint32_t worker, const PushSpec& push, ::zmq::message_t data) {
  ENGINE_RETURN_IF_ERROR(CheckPush(worker, spec_, push, data.size()));
  ENGINE_RETURN_IF_ERROR(failure_);
  Source& source = sources_[worker];
  if (push.step <= source.accepted) return {};
  if (source.pushes.size() == kMaxPushes) {
    return Blame(worker, "pushed several steps ahead of its updates: pull before the next push");
  }
  if (sync() && source.pushes.empty()) {
    ENGINE_RETURN_IF_ERROR(Enter(worker, push.step, push.learning_rate));
  }
  Waiting& waiting = source.pushes.emplace_back();
  waiting.step = push.step;
  waiting.learning_rate = push.learning_rate;
  waiting.weight = push.weight;
  waiting.gradient.data = std::move(data);
  waiting.gradient.sparse = push.sparse;
  const auto first_row = static_cast<int32_t>(push.sparse ? spec_.offset / spec_.row : 0);
  for (const int32_t row : push.rows) waiting.gradient.rows.push_back(row - first_row);
  if (!sync()) arrivals_.push_back(worker);
  Count(source, push.step);
  source.accepted = push.step;
  return {};
}

Status ServedCell::Enter(uint32_t worker, uint64_t step, float learning_rate) {
  Collection& all = collection_;
  if (all.step == 0) {
    all.step = step;
    all.learning_rate = learning_rate;
    all.first_worker = worker;
    return {};
  }
  if (step != all.step) {
    return zmq_ps::Blame(worker,
                         "rank %u pushed step %" PRIu64 " of unit %016" PRIx64
                         ", but rank %u pushed step %" PRIu64
                         ": all ranks must take the same steps",
                         worker, step, spec_.id.unit, all.first_worker, all.step);
  }
  if (learning_rate == all.learning_rate) return {};
  return zmq_ps::Blame(worker,
                       "rank %u pushed step %" PRIu64 " of unit %016" PRIx64
                       " with learning rate %.9g, but rank %u with %.9g: all ranks must have the "
                       "same schedule",
                       worker, step, spec_.id.unit, static_cast<double>(learning_rate),
                       all.first_worker, static_cast<double>(all.learning_rate));
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
  std::erase_if(pulls_, [&](const WaitingPull& pull) { return pull.worker == worker; });
}

bool ServedCell::due() const noexcept {
  if (busy_ || !failure_.ok() || !stored()) return false;
  if (!sync()) return !arrivals_.empty();
  return std::none_of(sources_.begin(), sources_.end(),
                      [](const Source& source) { return source.pushes.empty(); });
}

// The task belongs to the cell, and is filled anew for each update: nothing is allocated but room
// for the inputs.
UpdateTask* ServedCell::Start(uint64_t* copies) {
  if (!due()) return nullptr;
  const Status prepared = PrepareArrays(copies);
  if (!prepared.ok()) {
    Fail(prepared);
    return nullptr;
  }
  if (sync()) {
    TakeCollected();
  } else {
    TakeOldest();
  }
  busy_ = true;
  return &task_;
}

// An array that an answer still refers to is not changed: the update reads it and writes another
// version, which becomes the newest when it is done.
Status ServedCell::PrepareArrays(uint64_t* copies) {
  for (size_t i = 0; i < task_.arrays; ++i) {
    ServedArray& array = arrays_[i];
    task_.to[i] = array.Allocate(spec_.count) ? array.Writable(spec_.count) : nullptr;
    if (!task_.to[i]) {
      return Status::Error(StatusCode::kResourceExhausted,
                           "no memory for the update of %" PRIu64 " parameters", spec_.count);
    }
    task_.from[i] = array.newest();
    if (task_.from[i] != task_.to[i]) ++*copies;
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
void ServedCell::TakeCollected() {
  float weight = 0;
  for (uint32_t worker = 0; worker < sources_.size(); ++worker) {
    Waiting push = Take(worker);
    weight += push.weight;
    task_.inputs.push_back(std::move(push.gradient));
  }
  task_.step = collection_.step;
  task_.learning_rate = collection_.learning_rate;
  task_.gradient_scale = 1 / std::max(weight, 1.0f);
  // What waits already begins the next collection; whether all agree is seen after the update.
  collection_ = {};
  for (uint32_t worker = 0; worker < sources_.size() && collection_.step == 0; ++worker) {
    if (sources_[worker].pushes.empty()) continue;
    const Waiting& push = sources_[worker].pushes.front();
    (void)Enter(worker, push.step, push.learning_rate);
  }
}

void ServedCell::TakeOldest() {
  const uint32_t worker = arrivals_.front();
  arrivals_.erase(arrivals_.begin());
  Waiting push = Take(worker);
  applying_ = {worker, push.step};
  task_.step = std::max(updates_ + 1, push.step);
  task_.learning_rate = push.learning_rate;
  task_.gradient_scale = 1 / std::max(push.weight, 1.0f);
  task_.inputs.push_back(std::move(push.gradient));
}

void ServedCell::Finish() {
  busy_ = false;
  if (task_.status.ok()) {
    Updated();
  } else {
    Fail(task_.status.WithContext("the update of slice %u of unit %016" PRIx64 " at step %" PRIu64,
                                  spec_.id.slice, spec_.id.unit, task_.step));
  }
  task_.inputs.clear();
}

// Pushes that came during the update begin the next one; one of another step than the others fails
// the cell, because the push was answered already.
void ServedCell::Updated() {
  for (size_t i = 0; i < task_.arrays; ++i) arrays_[i].Publish();
  updates_ = task_.step;
  if (!sync()) {
    sources_[applying_.worker].applied = applying_.step;
    return;
  }
  for (Source& source : sources_) source.applied = task_.step;
  for (uint32_t worker = 0; worker < sources_.size(); ++worker) {
    if (sources_[worker].pushes.empty()) continue;
    const Waiting& push = sources_[worker].pushes.front();
    const Status agrees = Enter(worker, push.step, push.learning_rate);
    if (!agrees.ok()) return Fail(agrees);
  }
}

// Memory of pushes goes back: nothing will be made of them.
void ServedCell::Fail(const Status& reason) {
  failure_ = reason;
  for (Source& source : sources_) source.pushes.clear();
  arrivals_.clear();
  collection_ = {};
}

Status ServedCell::Pull(uint32_t worker, const PullSpec& pull) {
  ENGINE_RETURN_IF_ERROR(failure_);
  if (pull.step > kMaxStep) return Blame(worker, "a pull with a step out of range");
  if (pull.state >= static_cast<int32_t>(rules_.states)) {
    return Blame(worker, "a state that the optimizer does not have was asked for");
  }
  if (pull.sparse) ENGINE_RETURN_IF_ERROR(CheckRows(worker, spec_, pull.rows));
  const auto of_worker = [&](const WaitingPull& other) { return other.worker == worker; };
  if (std::count_if(pulls_.begin(), pulls_.end(), of_worker) == kMaxPulls) {
    return Blame(worker, "too many pulls at once");
  }
  WaitingPull& waiting = pulls_.emplace_back();
  waiting.worker = worker;
  waiting.request = pull.request;
  waiting.step = pull.step;
  waiting.array = pull.state < 0 ? 0 : 1 + static_cast<size_t>(pull.state);
  waiting.sparse = pull.sparse;
  waiting.rows.assign(pull.rows.begin(), pull.rows.end());
  return {};
}

bool ServedCell::Cancel(uint32_t worker, uint64_t request) {
  return std::erase_if(pulls_, [&](const WaitingPull& pull) {
           return pull.worker == worker && pull.request == request;
         }) != 0;
}

// Who has not pushed what the pull needs, by what was accepted: an update that is due or under way
// is nobody's fault.
std::vector<uint32_t> ServedCell::Missing(uint32_t worker, uint64_t request) const {
  std::vector<uint32_t> missing;
  const auto pull = std::find_if(pulls_.begin(), pulls_.end(), [&](const WaitingPull& other) {
    return other.worker == worker && other.request == request;
  });
  if (pull == pulls_.end()) return missing;
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    bool pushed = source.accepted >= pull->step;
    if (i != worker && rules_.mode == UpdateMode::kAsync) pushed = true;
    if (i != worker && rules_.mode == UpdateMode::kBounded) {
      pushed = source.presence != Presence::kCounts ||
               ClockOf(source, source.accepted) + rules_.staleness >= pull->step;
    }
    if (!pushed) missing.push_back(i);
  }
  return missing;
}

void ServedCell::Answer(std::vector<PullAnswer>* out) {
  if (pulls_.empty()) return;
  const uint64_t smallest = rules_.mode == UpdateMode::kBounded ? SmallestClock() : UINT64_MAX;
  std::erase_if(pulls_, [&](const WaitingPull& pull) {
    if (!IsReady(pull, smallest)) return false;
    out->push_back(AnswerTo(pull));
    return true;
  });
}

bool ServedCell::IsReady(const WaitingPull& pull, uint64_t smallest) const noexcept {
  if (!failure_.ok()) return true;
  if (!stored() || busy_) return false;
  const Source& own = sources_[pull.worker];
  if (pull.step == 0) return own.applied >= own.accepted;
  if (own.applied < pull.step) return false;
  return smallest >= pull.step || pull.step - smallest <= rules_.staleness;
}

PullAnswer ServedCell::AnswerTo(const WaitingPull& pull) {
  PullAnswer answer;
  answer.worker = pull.worker;
  answer.request = pull.request;
  answer.status = failure_;
  if (!failure_.ok()) return answer;
  ServedArray& array = arrays_[pull.array];
  if (!array.Allocate(spec_.count)) {
    answer.status = Status::Error(StatusCode::kResourceExhausted,
                                  "no memory for %" PRIu64 " parameters", spec_.count);
  } else {
    answer.data = pull.sparse ? Gather(pull) : array.Share(spec_.count);
  }
  return answer;
}

::zmq::message_t ServedCell::Gather(const WaitingPull& pull) {
  const size_t row_bytes = spec_.row * sizeof(float);
  const auto first_row = static_cast<int32_t>(spec_.offset / spec_.row);
  const float* const values = arrays_[pull.array].newest();
  ::zmq::message_t rows(pull.rows.size() * row_bytes);
  auto* out = static_cast<char*>(rows.data());
  for (const int32_t row : pull.rows) {
    std::memcpy(out, values + static_cast<size_t>(row - first_row) * spec_.row, row_bytes);
    out += row_bytes;
  }
  return rows;
}

}  // namespace engine::zmq_ps
