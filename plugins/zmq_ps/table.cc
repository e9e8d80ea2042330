// How it is driven:
//
//   a message arrives    Register, Store, Push, Pull      OK: it is done; a pull is answered later
//   after each of them   task = NextWork() until null     run it somewhere
//   a task has run       Finished(task), then NextWork    on the thread that has the table
//   now and then         TakeReady(&answers)              pulls that can be answered
//
// A unit is cut into slices; a slice that lies at this server is a cell. Cells know nothing of each
// other: tasks of several cells may run at once, those of one cell run one after the other, in the
// order in which their pushes came.
#include "table.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "describe.h"

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
  return Blame(worker,
               "rank %u names slice %u of unit %016" PRIx64
               ", which no rank has described to this server",
               worker, id.slice, id.unit);
}

// The first description counts, so that a server needs no model: all others must be equal to it.
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

void Table::Schedule(ServedCell& cell) {
  if (cell.due()) due_.push_back(&cell);
}

// due_ holds every cell for which due() is true, since whatever makes it true ends with Schedule. A
// cell may be there twice, or have nothing to do any more: Start decides.
UpdateTask* Table::NextWork() {
  while (!due_.empty()) {
    ServedCell* const cell = due_.front();
    due_.pop_front();
    if (UpdateTask* const task = cell->Start(&counters_.copies)) return task;
    cell->Answer(&ready_);
  }
  return nullptr;
}

void Table::Finished(UpdateTask* task) {
  ServedCell& cell = *task->cell;
  ++counters_.updates;
  cell.Finish();
  cell.Answer(&ready_);
  Schedule(cell);
}

bool Table::HasValues(const CellId& id) const {
  const auto found = cells_.find(id);
  return found != cells_.end() && found->second->stored();
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

// Answers to a rank that is lost are forgotten: a new process numbers its requests from one again,
// and must not get what its predecessor asked for.
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
