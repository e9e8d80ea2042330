#include "tests/support/parameter_table.h"

#include <algorithm>
#include <set>

namespace engine::test {
namespace {

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

bool SameSpans(std::span<const ServedSpan> a, std::span<const ServedSpan> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.count == y.count && x.weight_decay_scale == y.weight_decay_scale;
  });
}

Status CheckUnits(std::span<const ServedUnit> units) {
  std::set<uint64_t> keys;
  for (const ServedUnit& unit : units) {
    const auto key = static_cast<unsigned long long>(unit.key);
    if (unit.key == 0) return Status::Error(kInvalid, "a served unit has no key");
    if (!keys.insert(unit.key).second) {
      return Status::Error(kInvalid, "two served units have key %llu", key);
    }
    int64_t count = 0;
    for (const ServedSpan& span : unit.spans) count += span.count;
    if (unit.count <= 0 || count != unit.count) {
      return Status::Error(kInvalid, "the spans of unit %llu do not cover it", key);
    }
    if (unit.row < 0 || (unit.row > 0 && unit.count % unit.row != 0)) {
      return Status::Error(kInvalid, "unit %llu does not consist of whole rows", key);
    }
  }
  return {};
}

}  // namespace

ParameterTable::ParameterTable(TableSettings settings)
    : settings_(std::move(settings)),
      random_(settings_.seed),
      ranks_(static_cast<size_t>(settings_.world_size)),
      servers_(static_cast<size_t>(settings_.servers)) {
  thread_ = std::thread([this] { Loop(); });
}

ParameterTable::~ParameterTable() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Status ParameterTable::Register(int rank, std::span<const ServedUnit> units, Optimizer& optimizer) {
  Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  if (At(rank).optimizer != nullptr) {
    return Status::Error(kInvalid, "rank %d has registered before", rank);
  }
  ENGINE_RETURN_IF_ERROR(CheckUnits(units));
  if (!registered_) {
    for (const ServedUnit& served : units) {
      Unit unit{.index = units_.size(),
                .count = served.count,
                .row = served.row,
                .spans = {served.spans.begin(), served.spans.end()},
                .value = std::vector<float>(static_cast<size_t>(served.count))};
      unit.states.assign(static_cast<size_t>(optimizer.traits().state_count), unit.value);
      units_.emplace(served.key, std::move(unit));
    }
    registered_ = true;
  }
  bool same = units.size() == units_.size();
  for (size_t i = 0; same && i < units.size(); ++i) {
    const auto found = units_.find(units[i].key);
    same = found != units_.end() && found->second.index == i &&
           found->second.count == units[i].count && found->second.row == units[i].row &&
           SameSpans(found->second.spans, units[i].spans);
  }
  if (!same) {
    return Status::Error(kInvalid, "rank %d registers other units than the first rank", rank);
  }
  At(rank).optimizer = &optimizer;
  if (At(rank).gone) {
    for (auto& [key, unit] : units_) unit.joining.insert(rank);
  }
  At(rank).gone = false;
  changed_.notify_all();
  return {};
}

Status ParameterTable::CheckAlive(int rank) {
  ENGINE_RETURN_IF_ERROR(At(rank).ended);
  if (At(rank).optimizer != nullptr) return {};
  return Status::Error(kInvalid, "rank %d has not registered its units", rank);
}

Result<ParameterTable::Unit*> ParameterTable::Find(int rank, uint64_t key) {
  ENGINE_RETURN_IF_ERROR(CheckAlive(rank));
  const auto found = units_.find(key);
  if (found != units_.end()) return &found->second;
  return Status::Error(kInvalid, "no served unit has key %llu",
                       static_cast<unsigned long long>(key));
}

Result<std::vector<float>*> ParameterTable::Array(int rank, uint64_t key, int32_t state) {
  ENGINE_ASSIGN_OR_RETURN(Unit * unit, Find(rank, key));
  if (state < 0) return &unit->value;
  if (static_cast<size_t>(state) < unit->states.size()) {
    return &unit->states[static_cast<size_t>(state)];
  }
  return Status::Error(kInvalid, "the optimizer has no state %d", state);
}

Status ParameterTable::Store(int rank, uint64_t key, int32_t state, const float* data) {
  Lock lock(mutex_);
  ENGINE_ASSIGN_OR_RETURN(std::vector<float> * array, Array(rank, key, state));
  std::copy_n(data, array->size(), array->data());
  Unit& unit = units_.find(key)->second;
  if (state < 0) unit.stored = true;
  changed_.notify_all();
  return Settle(unit);
}

Status ParameterTable::Load(int rank, uint64_t key, int32_t state, float* data,
                            int64_t timeout_ms) {
  Lock lock(mutex_);
  ENGINE_ASSIGN_OR_RETURN(std::vector<float> * array, Array(rank, key, state));
  const Unit& unit = units_.find(key)->second;
  const uint64_t step = settings_.mode == UpdateMode::kSync ? At(rank).step.step : 0;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    ENGINE_RETURN_IF_ERROR(At(rank).ended);
    const Readiness readiness = ReadyToRead(rank, unit, step);
    if (readiness.ready) break;
    if (!readiness.error.ok()) return readiness.error;
    if (Clock::now() >= deadline) {
      return Status::Error(StatusCode::kTimeout, "unit %llu has not got its values",
                           static_cast<unsigned long long>(key))
          .WithRank(readiness.waits_for);
    }
    changed_.wait_until(lock, deadline);
  }
  std::copy_n(array->data(), array->size(), data);
  return {};
}

Status ParameterTable::LastStep(int rank, uint64_t* step) {
  Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(CheckAlive(rank));
  *step = units_.empty() ? 0 : UINT64_MAX;
  for (auto& [key, unit] : units_) *step = std::min(*step, unit.pushed[rank]);
  return {};
}

Status ParameterTable::BeginStep(int rank, const ServedStep& step) {
  Lock lock(mutex_);
  ENGINE_RETURN_IF_ERROR(CheckAlive(rank));
  const uint64_t last = At(rank).step.step;
  if (step.step == 0 || (last != 0 && step.step != last + 1)) {
    return Status::Error(kInvalid, "step %llu does not follow step %llu",
                         static_cast<unsigned long long>(step.step),
                         static_cast<unsigned long long>(last));
  }
  At(rank).step = step;
  if (first_step_ == 0) first_step_ = step.step;
  changed_.notify_all();
  return {};
}

Status ParameterTable::CheckTransfer(int rank, const Unit& unit, const Transfer& transfer) {
  if (transfer.count != unit.count || transfer.dtype != DType::kFloat32) {
    return Status::Error(kInvalid, "%s of %lld %s, but the unit has %lld float32",
                         Name(transfer.kind), static_cast<long long>(transfer.count),
                         Name(transfer.dtype), static_cast<long long>(unit.count));
  }
  if (transfer.rows != nullptr && unit.row == 0) {
    return Status::Error(kInvalid, "rows of a unit without rows");
  }
  for (int64_t i = 0; transfer.rows != nullptr && i < transfer.row_count; ++i) {
    if (transfer.rows[i] < 0 || transfer.rows[i] >= unit.count / unit.row ||
        (i > 0 && transfer.rows[i] <= transfer.rows[i - 1])) {
      return Status::Error(kInvalid, "rows must ascend and lie in the unit");
    }
  }
  if (transfer.kind == TransferKind::kPull) return {};
  const uint64_t step = At(rank).step.step;
  if (step == 0) return Status::Error(kInvalid, "a push before the first step");
  const auto found = unit.submitted.find(rank);
  if (found != unit.submitted.end() && found->second == step) {
    return Status::Error(kInvalid, "two pushes of one unit in one step");
  }
  return {};
}

Status ParameterTable::Submit(int rank, const Transfer& transfer, Work** out) {
  Lock lock(mutex_);
  ENGINE_ASSIGN_OR_RETURN(Unit * unit, Find(rank, transfer.key));
  ENGINE_RETURN_IF_ERROR(CheckTransfer(rank, *unit, transfer));
  const ServedStep& step = At(rank).step;
  if (transfer.kind == TransferKind::kPush) unit->submitted[rank] = step.step;
  const auto now = Clock::now();
  std::uniform_int_distribution<int64_t> delay_us(0, settings_.max_delay_us);
  works_.emplace_back();
  requests_.push_back({.rank = rank,
                       .transfer = transfer,
                       .step = step,
                       .work = &works_.back(),
                       .due = now + std::chrono::microseconds(delay_us(random_)),
                       .deadline = now + std::chrono::milliseconds(transfer.timeout_ms)});
  *out = &works_.back();
  changed_.notify_all();
  return {};
}

void ParameterTable::End(int rank, const Status& reason) {
  std::vector<HubWork*> works;
  {
    Lock lock(mutex_);
    if (!At(rank).ended.ok()) return;
    At(rank) = {.gone = true, .ended = reason};
    std::erase_if(requests_, [&](const Request& request) {
      if (request.rank == rank) works.push_back(request.work);
      return request.rank == rank;
    });
    changed_.notify_all();
  }
  for (HubWork* work : works) work->End(reason);
}

void ParameterTable::Drain() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void ParameterTable::Revive(int rank) {
  Lock lock(mutex_);
  At(rank).ended = Status();
  for (auto& [key, unit] : units_) unit.submitted.erase(rank);
}

Status ParameterTable::Serve(int index, Optimizer& optimizer) {
  Lock lock(mutex_);
  Server& server = servers_[static_cast<size_t>(index)];
  server.optimizer = &optimizer;
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return !server.ended.ok() ||
           std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.gone; });
  });
  server.optimizer = nullptr;
  return server.ended;
}

void ParameterTable::EndServer(int index, const Status& reason) {
  Lock lock(mutex_);
  Server& server = servers_[static_cast<size_t>(index)];
  if (!server.ended.ok()) return;
  server.ended = reason;
  changed_.notify_all();
}

uint64_t ParameterTable::Progress(int rank, const Unit& unit) const {
  const auto found = unit.pushed.find(rank);
  if (found == unit.pushed.end()) return first_step_ == 0 ? 0 : first_step_ - 1;
  const auto ahead = unit.ahead.find(rank);
  return found->second + (ahead != unit.ahead.end() ? ahead->second : 0);
}

// The first push, of `step`, of one that took the place of another.
void ParameterTable::Join(int rank, Unit& unit, uint64_t step) {
  if (unit.joining.erase(rank) == 0) return;
  uint64_t slowest = UINT64_MAX;
  for (int other = 0; other < settings_.world_size; ++other) {
    const bool counts = !At(other).gone && unit.joining.count(other) == 0;
    if (other != rank && counts) slowest = std::min(slowest, Progress(other, unit));
  }
  unit.ahead[rank] = slowest == UINT64_MAX || slowest + 1 <= step ? 0 : slowest + 1 - step;
}

ParameterTable::Readiness ParameterTable::ReadyToRead(int rank, const Unit& unit, uint64_t step) {
  if (!unit.stored) {
    if (!At(0).gone) return {.waits_for = 0};
    return {.error = CauseOf(0, At(0).ended)};
  }
  const bool sync = settings_.mode == UpdateMode::kSync;
  if (sync && unit.updated >= step) return {.ready = true};
  if (step == 0) return {.ready = true};
  const auto own = unit.pushed.find(rank);
  if (!sync && (own == unit.pushed.end() || own->second < step)) return {.waits_for = rank};
  if (settings_.mode == UpdateMode::kAsync) return {.ready = true};
  const auto behind = sync ? 0 : static_cast<uint64_t>(settings_.staleness);
  for (int other = 0; other < settings_.world_size; ++other) {
    if (Progress(other, unit) + behind >= step || unit.joining.count(other) != 0) continue;
    if (!At(other).gone) return {.waits_for = other};
    if (sync) return {.waits_for = other, .error = CauseOf(other, At(other).ended)};
  }
  return {.ready = !sync};  // sync: all have pushed, and no server has updated it yet
}

void ParameterTable::Loop() {
  Lock lock(mutex_);
  while (!stop_) {
    const auto now = Clock::now();
    auto wake = now + std::chrono::hours(1);
    std::vector<std::pair<Request, Status>> ended;
    const Status updated = SettleAll();
    for (auto request = requests_.begin(); request != requests_.end();) {
      const auto status = updated.ok() ? Try(*request, now) : updated;
      if (status.has_value()) {
        ended.emplace_back(*request, *status);
        request = requests_.erase(request);
        continue;
      }
      wake = std::min(wake, request->due > now ? request->due : request->deadline);
      ++request;
    }
    if (ended.empty()) {
      changed_.wait_until(lock, wake);
      continue;
    }
    changed_.notify_all();  // to those who Load
    busy_ = true;
    lock.unlock();
    for (auto& [request, status] : ended) {
      if (!status.ok()) {
        End(request.rank, status);
        if (settings_.on_failure) settings_.on_failure(request.rank, status);
      }
      request.work->End(status);
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

// How the request ends; nothing while it does not.
std::optional<Status> ParameterTable::Try(const Request& request, Clock::time_point now) {
  if (request.due > now) return std::nullopt;
  Unit& unit = units_.find(request.transfer.key)->second;
  const Status lost = LostServer();
  if (request.transfer.kind == TransferKind::kPush) return lost.ok() ? DoPush(request, unit) : lost;
  const Readiness readiness = ReadyToRead(request.rank, unit, request.step.step);
  if (readiness.ready) {
    DoPull(request, unit);
    return Status();
  }
  if (!lost.ok()) return lost;
  if (!readiness.error.ok()) return readiness.error;
  if (now < request.deadline) return std::nullopt;
  return Status::Error(StatusCode::kTimeout, "unit %llu waits for a push of rank %d",
                       static_cast<unsigned long long>(request.transfer.key), readiness.waits_for)
      .WithRank(readiness.waits_for);
}

// Why nothing can be pushed any more: a server ended although ranks are there.
Status ParameterTable::LostServer() const {
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Status& ended = servers_[i].ended;
    if (!ended.ok()) return CauseOf(ServerId(static_cast<int32_t>(i)), ended);
  }
  return {};
}

Status ParameterTable::DoPush(const Request& request, Unit& unit) {
  const Transfer& transfer = request.transfer;
  const auto* data = static_cast<const float*>(transfer.send);
  Push push{.gradient = std::vector<float>(static_cast<size_t>(unit.count)), .step = request.step};
  if (transfer.rows == nullptr) {
    push.gradient.assign(data, data + unit.count);
  } else {
    for (int64_t i = 0; i < transfer.row_count; ++i) {
      const int64_t at = transfer.rows[i] * unit.row;
      std::copy_n(data + at, unit.row, push.gradient.data() + at);
    }
  }
  Join(request.rank, unit, request.step.step);
  uint64_t& pushed = unit.pushed[request.rank];
  if (request.step.step <= pushed) return {};  // by the process that had this rank before
  pushed = request.step.step;
  if (settings_.mode == UpdateMode::kSync) {
    unit.gathered[pushed].emplace(request.rank, std::move(push));
  } else {
    unit.queue.push_back(std::move(push));
  }
  return Settle(unit);
}

void ParameterTable::DoPull(const Request& request, const Unit& unit) {
  const Transfer& transfer = request.transfer;
  auto* data = static_cast<float*>(transfer.recv);
  if (transfer.rows == nullptr) {
    std::copy_n(unit.value.data(), unit.count, data);
    return;
  }
  for (int64_t i = 0; i < transfer.row_count; ++i) {
    const int64_t at = transfer.rows[i] * unit.row;
    std::copy_n(unit.value.data() + at, unit.row, data + at);
  }
}

Status ParameterTable::SettleAll() {
  for (auto& [key, unit] : units_) ENGINE_RETURN_IF_ERROR(Settle(unit));
  return {};
}

// Makes the updates that can be made.
Status ParameterTable::Settle(Unit& unit) {
  Optimizer* const optimizer = Updater(unit);
  if (!unit.stored || optimizer == nullptr) return {};
  for (; !unit.queue.empty(); unit.queue.pop_front()) {
    const Push& push = unit.queue.front();
    ENGINE_RETURN_IF_ERROR(Update(unit, *optimizer, push.gradient, push.step));
  }
  while (!unit.gathered.empty() && unit.gathered.begin()->second.size() == ranks_.size()) {
    const auto first = unit.gathered.begin();
    Push sum = std::move(first->second.at(0));
    for (int rank = 1; rank < settings_.world_size; ++rank) {
      const Push& push = first->second.at(rank);
      for (size_t i = 0; i < sum.gradient.size(); ++i) sum.gradient[i] += push.gradient[i];
      sum.step.weight += push.step.weight;
    }
    unit.gathered.erase(first);
    ENGINE_RETURN_IF_ERROR(Update(unit, *optimizer, sum.gradient, sum.step));
  }
  return {};
}

// Whose optimizer updates a unit; null while there is none.
Optimizer* ParameterTable::Updater(const Unit& unit) {
  if (!servers_.empty()) return servers_[unit.index % servers_.size()].optimizer;
  for (const Rank& rank : ranks_) {
    if (rank.optimizer != nullptr) return rank.optimizer;
  }
  return nullptr;
}

Status ParameterTable::Update(Unit& unit, Optimizer& optimizer, const std::vector<float>& gradient,
                              const ServedStep& step) {
  const bool sync = settings_.mode == UpdateMode::kSync;
  unit.updated = sync ? step.step : std::max(unit.updated + 1, step.step);
  int64_t offset = 0;
  for (const ServedSpan& span : unit.spans) {
    UpdateCall call{.value = unit.value.data() + offset,
                    .gradient = gradient.data() + offset,
                    .count = span.count,
                    .gradient_scale = 1 / std::max(step.weight, 1.0f),
                    .learning_rate = step.learning_rate,
                    .weight_decay_scale = span.weight_decay_scale,
                    .step = unit.updated};
    for (size_t i = 0; i < unit.states.size(); ++i) {
      call.states[i] = unit.states[i].data() + offset;
    }
    ENGINE_RETURN_IF_ERROR(optimizer.Update(call));
    offset += span.count;
  }
  return {};
}

}  // namespace engine::test
