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

// All of one thread, except Run of a task. Every error is kInvalidArgument with the number of the
// worker to blame, unless stated otherwise; what was asked for is then not done. Requests have been
// decoded, and their workers are ranks of the run; nothing else of them is trusted: sizes are checked
// against the bytes that came before memory is taken.
class Table {
 public:
  // `optimizer` is used until the table is gone. Tasks that are under way must be finished or
  // never run when it is destroyed.
  Table(const ParameterTraits& traits, uint32_t workers, Optimizer& optimizer);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // What lies in a cell. The first description counts; another one is refused, with a sentence that
  // names both ranks and the bucket. kConfig: the optimizer needs more of a gradient than a slice.
  // No memory of the size of a cell is taken before it is stored.
  Status Register(const Header& request, std::vector<ServedSpan> spans);

  // Values (`state` < 0) or a state of the optimizer; `data`: all floats of the cell. States are
  // zero until they are stored. Nothing is updated and no pull is answered before values were
  // stored, so states must be stored before values. Refused while an update runs.
  Status Store(const Header& request, const ::zmq::message_t& data);

  // Keeps `data` without copying it. A step that the worker has pushed already is left out
  // silently, also if it was pushed by one whose place it took.
  Status Push(const Header& request, std::span<const int32_t> rows, ::zmq::message_t data);

  // Answered by TakeReady, in general later.
  Status Pull(const Header& request, std::span<const int32_t> rows);
  // The workers whose pushes a pull waits for, rank 0 while nothing is stored; empty when it waits
  // for a task.
  std::vector<uint32_t> Missing(const Header& pull) const;

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
  void Lose(uint32_t worker) { SetPresence(worker, ServedCell::Presence::kLost); }
  // Another one takes its place. kBounded: others wait for it from its first push on, and count its
  // steps from the smallest clock of theirs (see ServedCell).
  void Join(uint32_t worker) { SetPresence(worker, ServedCell::Presence::kJoined); }

 private:
  // The cell, or why there is none.
  Result<ServedCell*> Find(const Header& request) const;
  void SetPresence(uint32_t worker, ServedCell::Presence presence);
  void Schedule(ServedCell& cell);

  const CellRules rules_;
  const UpdateGate gate_;
  std::map<CellId, std::unique_ptr<ServedCell>> cells_;
  std::vector<ServedCell::Presence> presence_;  // by worker
  std::deque<ServedCell*> due_;
  std::vector<PullAnswer> ready_;
};

}  // namespace engine::zmq_ps
