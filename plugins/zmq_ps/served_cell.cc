#include "served_cell.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

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
  return Status::Error(StatusCode::kInvalidArgument, "rank %u, slice %u of unit %016" PRIx64 ": %s",
                       worker, spec_.id.slice, spec_.id.unit, what)
      .WithRank(static_cast<int32_t>(worker));
}

Status ServedCell::Store(uint32_t worker, int32_t state, const ::zmq::message_t& data) {
  ENGINE_RETURN_IF_ERROR(failure_);
  if (state >= static_cast<int32_t>(rules_.states)) {
    return Blame(worker, "a state that the optimizer does not have was stored");
  }
  if (data.size() != spec_.count * sizeof(float)) {
    return Blame(worker, "values were stored with more or less data than the slice has");
  }
  if (updating()) return Blame(worker, "values were stored while an update was under way");
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
  if (sync() && source.pushes.empty() && worker >= collection_.next) {
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
  const auto blamed = static_cast<int32_t>(worker);
  if (step != all.step) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "rank %u pushed step %" PRIu64 " of unit %016" PRIx64
                         ", but rank %u pushed step %" PRIu64
                         ": all ranks must take the same steps",
                         worker, step, spec_.id.unit, all.first_worker, all.step)
        .WithRank(blamed);
  }
  if (learning_rate != all.learning_rate) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "rank %u pushed step %" PRIu64 " of unit %016" PRIx64
                         " with learning rate %.9g, but rank %u with %.9g: all ranks must have the "
                         "same schedule",
                         worker, step, spec_.id.unit, static_cast<double>(learning_rate),
                         all.first_worker, static_cast<double>(all.learning_rate))
        .WithRank(blamed);
  }
  return {};
}

void ServedCell::Count(Source& source, uint64_t step) noexcept {
  if (!origin_) origin_ = step - 1;
  if (source.presence != Presence::kJoined) return;
  const uint64_t others = SmallestClock();
  source.ahead = others != UINT64_MAX && others > step - 1 ? others - (step - 1) : 0;
  source.presence = Presence::kCounts;
}

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

void ServedCell::SetPresence(uint32_t worker, Presence presence) {
  sources_[worker].presence = presence;
  std::erase_if(pulls_, [&](const WaitingPull& pull) { return pull.worker == worker; });
}

uint32_t ServedCell::EndOfCollected() const noexcept {
  uint32_t end = collection_.next;
  while (end < sources_.size() && !sources_[end].pushes.empty()) ++end;
  return end;
}

ServedCell::Due ServedCell::due() const noexcept {
  if (busy_ || !failure_.ok()) return Due::kNothing;
  if (!sync()) return !arrivals_.empty() && stored() ? Due::kUpdate : Due::kNothing;
  const uint32_t end = EndOfCollected();
  if (end == sources_.size()) return stored() ? Due::kUpdate : Due::kNothing;
  const uint32_t inputs = end - collection_.next + (collection_.has_sum ? 1 : 0);
  return inputs >= 2 ? Due::kSum : Due::kNothing;
}

UpdateTask* ServedCell::Start(uint64_t* copies) {
  const Due what = due();
  if (what == Due::kNothing) return nullptr;
  task_.update = what == Due::kUpdate;
  if (task_.update) {
    const Status prepared = PrepareArrays(copies);
    if (!prepared.ok()) {
      Fail(prepared);
      return nullptr;
    }
  }
  if (sync()) {
    TakeCollected();
  } else {
    TakeOldest();
  }
  busy_ = true;
  return &task_;
}

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

// Weights are added up in the order of the workers too.
void ServedCell::TakeCollected() {
  Collection& all = collection_;
  if (all.has_sum) task_.inputs.push_back(std::move(all.sum));
  all.has_sum = false;
  const uint32_t end = EndOfCollected();
  for (; all.next < end; ++all.next) {
    Waiting push = Take(all.next);
    all.weight += push.weight;
    task_.inputs.push_back(std::move(push.gradient));
  }
  task_.step = all.step;
  task_.learning_rate = all.learning_rate;
  task_.gradient_scale = 1 / std::max(all.weight, 1.0f);
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
  if (!task_.status.ok()) {
    Fail(task_.status.WithContext("the update of slice %u of unit %016" PRIx64 " at step %" PRIu64,
                                  spec_.id.slice, spec_.id.unit, task_.step));
  } else if (task_.update) {
    Updated();
  } else {
    collection_.sum = std::move(task_.inputs.front());
    collection_.has_sum = true;
  }
  task_.inputs.clear();
}

void ServedCell::Updated() {
  for (size_t i = 0; i < task_.arrays; ++i) arrays_[i].Publish();
  updates_ = task_.step;
  if (!sync()) {
    sources_[applying_.worker].applied = applying_.step;
    return;
  }
  for (Source& source : sources_) source.applied = collection_.step;
  collection_ = {};
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
  if (!stored() || updating()) return false;
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

void CellQueue::Push(ServedCell& cell) noexcept {
  ServedCell::Link& link = cell.links_[link_];
  if (link.queued) return;
  link = {.next = nullptr, .queued = true};
  (last_ ? last_->links_[link_].next : first_) = &cell;
  last_ = &cell;
}

ServedCell* CellQueue::Pop() noexcept {
  ServedCell* const cell = first_;
  if (!cell) return nullptr;
  first_ = cell->links_[link_].next;
  if (!first_) last_ = nullptr;
  cell->links_[link_] = {};
  return cell;
}

}  // namespace engine::zmq_ps
