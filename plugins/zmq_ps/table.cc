#include "table.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

namespace engine::zmq_ps {
namespace {

constexpr size_t kMaxCells = size_t{1} << 20;

CellRules RulesOf(const TableSettings& settings, Optimizer& optimizer) {
  return {.mode = settings.mode,
          .staleness = static_cast<uint64_t>(std::max(settings.staleness, 0)),
          .workers = settings.workers,
          .states = static_cast<uint32_t>(
              std::clamp(optimizer.traits().state_count, 0, kMaxOptimizerStates)),
          .optimizer = &optimizer};
}

}  // namespace

Table::Table(const TableSettings& settings, Optimizer& optimizer)
    : rules_(RulesOf(settings, optimizer)),
      max_cell_bytes_(settings.max_cell_bytes),
      gate_(optimizer.traits().gate),
      presence_(settings.workers, ServedCell::Presence::kCounts) {}

Table::~Table() = default;

Status Table::CheckWorker(uint32_t worker) const {
  if (worker < rules_.workers) return {};
  return Status::Error(StatusCode::kInvalidArgument, "there is no rank %u: there are %u", worker,
                       rules_.workers);
}

Result<ServedCell*> Table::Find(uint32_t worker, const CellId& id) const {
  ENGINE_RETURN_IF_ERROR(CheckWorker(worker));
  const auto found = cells_.find(id);
  if (found != cells_.end()) return found->second.get();
  return Status::Error(StatusCode::kInvalidArgument,
                       "rank %u names slice %u of unit %016" PRIx64
                       ", which no rank has described to this server",
                       worker, id.slice, id.unit)
      .WithRank(static_cast<int32_t>(worker));
}

Status Table::Register(uint32_t worker, const CellSpec& spec) {
  ENGINE_RETURN_IF_ERROR(CheckWorker(worker));
  if (gate_ != UpdateGate::kSpan) {
    return Status::Error(StatusCode::kConfig,
                         "the optimizer needs whole gradients, but a parameter server updates "
                         "slices: choose another optimizer, or update on the workers");
  }
  ENGINE_RETURN_IF_ERROR(CheckCell(worker, spec, max_cell_bytes_));
  const auto found = cells_.find(spec.id);
  if (found != cells_.end()) {
    const ServedCell& cell = *found->second;
    return CheckSameCell(worker, spec, cell.first_worker(), cell.spec());
  }
  if (cells_.size() >= kMaxCells) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "a server keeps %zu slices at most: raise slice_bytes or use more servers",
                         kMaxCells);
  }
  cells_.emplace(spec.id, std::make_unique<ServedCell>(rules_, worker, spec, presence_));
  return {};
}

Status Table::Store(uint32_t worker, const CellId& id, int32_t state,
                    const ::zmq::message_t& data) {
  ENGINE_ASSIGN_OR_RETURN(ServedCell* const cell, Find(worker, id));
  ENGINE_RETURN_IF_ERROR(cell->Store(worker, state, data));
  // Pulls first: an update would make them wait for its end.
  cell->Answer(&ready_);
  Schedule(*cell);
  return {};
}

Status Table::Push(uint32_t worker, const CellId& id, const PushSpec& spec, ::zmq::message_t data) {
  ENGINE_ASSIGN_OR_RETURN(ServedCell* const cell, Find(worker, id));
  ENGINE_RETURN_IF_ERROR(cell->Push(worker, spec, std::move(data)));
  Schedule(*cell);
  return {};
}

Status Table::Pull(uint32_t worker, const CellId& id, const PullSpec& spec) {
  ENGINE_ASSIGN_OR_RETURN(ServedCell* const cell, Find(worker, id));
  ENGINE_RETURN_IF_ERROR(cell->Pull(worker, spec));
  cell->Answer(&ready_);
  return {};
}

bool Table::Cancel(uint32_t worker, const CellId& id, uint64_t request) {
  const Result<ServedCell*> cell = Find(worker, id);
  return cell.ok() && (*cell)->Cancel(worker, request);
}

std::vector<uint32_t> Table::Missing(uint32_t worker, const CellId& id, uint64_t request) const {
  const Result<ServedCell*> cell = Find(worker, id);
  return cell.ok() ? (*cell)->Missing(worker, request) : std::vector<uint32_t>();
}

void Table::Schedule(ServedCell& cell) noexcept {
  switch (cell.due()) {
    case ServedCell::Due::kNothing:
      return;
    case ServedCell::Due::kSum:
      return sums_.Push(cell);
    case ServedCell::Due::kUpdate:
      return updates_.Push(cell);
  }
}

// A cell may be in both queues, or have nothing to do any more: Start decides.
UpdateTask* Table::NextWork() {
  for (CellQueue* queue : {&updates_, &sums_}) {
    while (ServedCell* const cell = queue->Pop()) {
      if (UpdateTask* const task = cell->Start(&counters_.copies)) return task;
      cell->Answer(&ready_);
    }
  }
  return nullptr;
}

void Table::Finished(UpdateTask* task) {
  ServedCell& cell = *task->cell;
  ++(task->update ? counters_.updates : counters_.sums);
  cell.Finish();
  cell.Answer(&ready_);
  Schedule(cell);
}

void Table::TakeReady(std::vector<PullAnswer>* out) {
  out->clear();
  out->swap(ready_);
}

uint64_t Table::LastStep(uint32_t worker) const {
  uint64_t last = kNoCells;
  for (const auto& [id, cell] : cells_) {
    last = std::min(last, worker < rules_.workers ? cell->LastStep(worker) : 0);
  }
  return last;
}

void Table::SetPresence(uint32_t worker, ServedCell::Presence presence) {
  if (worker >= rules_.workers) return;
  presence_[worker] = presence;
  std::erase_if(ready_, [&](const PullAnswer& answer) { return answer.worker == worker; });
  for (const auto& [id, cell] : cells_) {
    cell->SetPresence(worker, presence);
    cell->Answer(&ready_);
  }
}

void Table::Lose(uint32_t worker) {
  SetPresence(worker, ServedCell::Presence::kLost);
}

void Table::Join(uint32_t worker) {
  SetPresence(worker, ServedCell::Presence::kJoined);
}

}  // namespace engine::zmq_ps
