// How it is driven:
//
//   a message arrives    Register, Store, Push, Pull      OK: it is done; a pull is answered later
//   after each of them   task = NextWork() until null     run it somewhere
//   a task has run       Finished(task), then NextWork    on the thread that has the table
//   now and then         TakeReady(&answers)              pulls that can be answered
//
// A bucket is cut into slices; a slice that lies at this server is a cell. Cells know nothing of
// each other: tasks of several cells may run at once, those of one cell run one after the other, in
// the order in which their pushes came.
#include "table.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "wire.h"

namespace engine::zmq_ps {
namespace {

CellRules RulesOf(const ParameterTraits& traits, uint32_t workers, Optimizer& optimizer) {
  const bool waits = traits.mode != UpdateMode::kAsync;
  return {.mode = traits.mode,
          .staleness = waits ? static_cast<uint64_t>(std::max(traits.staleness, 0)) : kMaxStep,
          .workers = workers,
          .states = static_cast<uint32_t>(
              std::clamp(optimizer.traits().state_count, 0, kMaxOptimizerStates)),
          .optimizer = &optimizer};
}

Text Describe(const CellSpec& spec) {
  return kit::Format("elements %" PRIu64 " to %" PRIu64 " of %" PRIu64
                     " in %u slices, rows of %" PRIu64 ", %zu parameters",
                     spec.slice.offset, spec.slice.offset + spec.slice.count, spec.slice.total,
                     spec.slice.slices, spec.row, spec.spans.size());
}

}  // namespace

Table::Table(const ParameterTraits& traits, uint32_t workers, Optimizer& optimizer)
    : rules_(RulesOf(traits, workers, optimizer)),
      gate_(optimizer.traits().gate),
      presence_(workers, ServedCell::Presence::kCounts) {}

Result<ServedCell*> Table::Find(const Header& request) const {
  const auto found = cells_.find(CellOf(request));
  if (found != cells_.end()) return found->second.get();
  return Wrong(request, "a slice that no rank has described to this server");
}

// The first description counts, so that a server needs no model: all others must be equal to it.
Status Table::Register(const Header& request, std::vector<ServedSpan> spans) {
  if (gate_ != UpdateGate::kSpan) {
    return Status::Error(StatusCode::kConfig,
                         "the optimizer needs whole gradients, but a parameter server updates "
                         "slices: choose another optimizer, or update on the workers");
  }
  CellSpec spec{CellOf(request), request.spec, request.served.row, std::move(spans)};
  ENGINE_RETURN_IF_ERROR(CheckCell(request, spec));
  const auto found = cells_.find(spec.id);
  if (found != cells_.end()) {
    const ServedCell& cell = *found->second;
    if (cell.spec() == spec) return {};
    return Blame(request.worker,
                 "rank %u describes slice %u of bucket %016" PRIx64
                 " as %s, but rank %u as %s, or with other sizes or weight decay: all ranks must "
                 "train the same model with the same scheduler and slice_bytes",
                 request.worker, spec.id.slice, spec.id.bucket, Describe(spec).c_str(),
                 cell.first_worker(), Describe(cell.spec()).c_str());
  }
  const CellId id = spec.id;
  cells_.emplace(id,
                 std::make_unique<ServedCell>(rules_, request.worker, std::move(spec), presence_));
  return {};
}

Status Table::Store(const Header& request, const ::zmq::message_t& data) {
  ENGINE_ASSIGN_OR_RETURN(ServedCell* const cell, Find(request));
  ENGINE_RETURN_IF_ERROR(cell->Store(request, data));
  // Pulls first: an update would make them wait for its end.
  cell->Answer(&ready_);
  Schedule(*cell);
  return {};
}

Status Table::Push(const Header& request, std::span<const int32_t> rows, ::zmq::message_t data) {
  ENGINE_ASSIGN_OR_RETURN(ServedCell* const cell, Find(request));
  ENGINE_RETURN_IF_ERROR(cell->Push(request, rows, std::move(data)));
  Schedule(*cell);
  return {};
}

Status Table::Pull(const Header& request, std::span<const int32_t> rows) {
  ENGINE_ASSIGN_OR_RETURN(ServedCell* const cell, Find(request));
  ENGINE_RETURN_IF_ERROR(cell->Pull(request, rows));
  cell->Answer(&ready_);
  return {};
}

std::vector<uint32_t> Table::Missing(const Header& pull) const {
  const Result<ServedCell*> cell = Find(pull);
  return cell.ok() ? (*cell)->Missing(pull) : std::vector<uint32_t>{0};
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
    if (UpdateTask* const task = cell->Start()) return task;
    cell->Answer(&ready_);
  }
  return nullptr;
}

void Table::Finished(UpdateTask* task) {
  ServedCell& cell = *task->cell;
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
  for (const auto& [id, cell] : cells_) last = std::min(last, cell->LastStep(worker));
  return last;
}

// Answers to a rank that is lost are forgotten: a new process numbers its requests from one again,
// and must not get what its predecessor asked for.
void Table::SetPresence(uint32_t worker, ServedCell::Presence presence) {
  presence_[worker] = presence;
  std::erase_if(ready_, [&](const PullAnswer& answer) { return answer.worker == worker; });
  for (const auto& [id, cell] : cells_) {
    cell->SetPresence(worker, presence);
    cell->Answer(&ready_);
  }
}

}  // namespace engine::zmq_ps
