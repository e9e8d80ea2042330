// What a parameter server keeps, which pushes have arrived, when an update is due and when a pull
// may be answered. No sockets, no threads, no clock: whoever drives it has them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>
#include <zmq.hpp>

#include "engine/ext/parameter_server.h"
#include "engine/optimizer.h"
#include "engine/status.h"
#include "served_cell.h"
#include "served_task.h"

namespace engine::zmq_ps {

struct TableSettings {
  UpdateMode mode = UpdateMode::kSync;
  int32_t staleness = 0;
  uint32_t workers = 1;
  uint64_t max_cell_bytes = 0;  // of the values of one cell
};

// All of one thread, except Run of a task. Every error is kInvalidArgument with the number of the
// worker to blame, unless stated otherwise; what was asked for is then not done. Nothing that comes
// from a worker is trusted: sizes are checked against the bytes that came before memory is taken.
class Table {
 public:
  // `optimizer` is used until the table is gone. Tasks that are under way must be finished or
  // never run when it is destroyed.
  Table(const TableSettings& settings, Optimizer& optimizer);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // What lies in a cell. The first description counts; another one is refused, with a sentence that
  // names both ranks and the unit. kConfig: the optimizer needs more of a gradient than a slice.
  // No memory of the size of a cell is taken before it is stored.
  Status Register(uint32_t worker, const CellSpec& spec);

  // Values (`state` < 0) or a state of the optimizer; `data`: all floats of the cell. States are
  // zero until they are stored. Nothing is updated and no pull is answered before values were
  // stored, so states must be stored before values. Refused while an update runs.
  Status Store(uint32_t worker, const CellId& id, int32_t state, const ::zmq::message_t& data);

  // Keeps `data` without copying it. A step that the worker has pushed already is left out
  // silently, also if it was pushed by one whose place it took.
  Status Push(uint32_t worker, const CellId& id, const PushSpec& spec, ::zmq::message_t data);

  // Answered by TakeReady, in general later.
  Status Pull(uint32_t worker, const CellId& id, const PullSpec& spec);
  // The answer is not wanted any more. False: there is no such pull, or it was taken.
  bool Cancel(uint32_t worker, const CellId& id, uint64_t request);
  // The workers whose pushes a pull waits for; empty when it waits for values or for a task.
  std::vector<uint32_t> Missing(uint32_t worker, const CellId& id, uint64_t request) const;

  bool HasValues(const CellId& id) const;

  // The next update that can run now, or null.
  UpdateTask* NextWork();
  void Finished(UpdateTask* task);

  // Replaces *out by the answers since the last call, in the order in which they became possible.
  void TakeReady(std::vector<PullAnswer>* out);

  // The smallest over the cells of the last step that this worker has pushed, 0 if there is none;
  // kNoCells when there is no cell.
  static constexpr uint64_t kNoCells = UINT64_MAX;
  uint64_t LastStep(uint32_t worker) const;

  // The worker is gone, or left. Its pulls are forgotten, and answers that were not taken; its
  // pushes are applied. kBounded: others do not wait for it any longer. kSync: an update still
  // needs it.
  void Lose(uint32_t worker);
  // Another one takes its place. kBounded: others wait for it from its first push on, and count its
  // steps from the smallest clock of theirs (see ServedCell).
  void Join(uint32_t worker);

  struct Counters {
    uint64_t updates = 0;
    uint64_t copies = 0;  // arrays that were copied because an answer was not sent yet
  };
  const Counters& counters() const noexcept { return counters_; }

 private:
  // The cell, or why there is none.
  Result<ServedCell*> Find(uint32_t worker, const CellId& id) const;
  Status CheckWorker(uint32_t worker) const;
  void SetPresence(uint32_t worker, ServedCell::Presence presence);
  void Schedule(ServedCell& cell);

  const CellRules rules_;
  const uint64_t max_cell_bytes_;
  const UpdateGate gate_;
  std::map<CellId, std::unique_ptr<ServedCell>> cells_;
  std::vector<ServedCell::Presence> presence_;  // by worker
  std::deque<ServedCell*> due_;
  std::vector<PullAnswer> ready_;
  Counters counters_;
};

}  // namespace engine::zmq_ps
