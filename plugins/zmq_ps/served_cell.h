// A slice of a served bucket at its server: values, states, and who has pushed what.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>
#include <zmq.hpp>

#include "engine/ext/parameter_server.h"
#include "engine/optimizer.h"
#include "engine/status.h"
#include "served_buffer.h"
#include "served_spec.h"
#include "served_task.h"

namespace engine::zmq_ps {

struct PullAnswer {
  uint32_t worker = 0;
  uint64_t request = 0;
  Status status;
  // Over the cell's memory, which stays as it is until the last copy of the message is gone; rows:
  // a copy of them.
  ::zmq::message_t data;
};

// The same for all cells of a table.
struct CellRules {
  UpdateMode mode = UpdateMode::kSync;
  uint64_t staleness = 0;  // beyond every step with kAsync
  uint32_t workers = 1;
  uint32_t states = 0;
  Optimizer* optimizer = nullptr;
};

// One cell. Table says what its calls do; the rules of time stand in served_cell.cc.
class ServedCell {
 public:
  enum class Presence : uint8_t { kCounts, kLost, kJoined };

  ServedCell(const CellRules& rules, uint32_t worker, CellSpec spec,
             std::span<const Presence> presence);

  const CellSpec& spec() const noexcept { return spec_; }
  uint32_t first_worker() const noexcept { return first_worker_; }
  uint64_t LastStep(uint32_t worker) const noexcept { return sources_[worker].accepted; }

  Status Store(const Header& request, const ::zmq::message_t& data);
  Status Push(const Header& request, std::span<const int32_t> rows, ::zmq::message_t data);
  Status Pull(const Header& request, std::span<const int32_t> rows);
  std::vector<uint32_t> Missing(const Header& pull) const;
  void SetPresence(uint32_t worker, Presence presence);

  bool stored() const noexcept { return !arrays_[0].empty(); }

  // Start hands out the update that is due, if one is; null also when there is no memory for it,
  // which fails the cell.
  bool due() const noexcept;
  UpdateTask* Start();
  void Finish();
  // Appends the pulls that can be answered now.
  void Answer(std::vector<PullAnswer>* out);

 private:
  struct Waiting {  // a push that no task has taken
    ServedFields push;
    ServedGradient gradient;
  };
  struct Source {           // one worker
    uint64_t accepted = 0;  // last step that was pushed
    uint64_t applied = 0;   // ... and updated; see above
    uint64_t ahead = 0;     // added to its clock
    Presence presence = Presence::kCounts;
    std::vector<Waiting> pushes;
  };
  struct WaitingPull {
    Header request;
    std::vector<int32_t> rows;
  };

  bool sync() const noexcept { return rules_.mode == UpdateMode::kSync; }
  // `step`: the last one of the source that was applied, or pushed.
  uint64_t ClockOf(const Source& source, uint64_t step) const noexcept;
  // Of those who count, UINT64_MAX if there is none.
  uint64_t SmallestClock() const noexcept;

  Status CheckState(const Header& request) const;
  Status CheckAgrees(uint32_t worker, uint64_t step, float learning_rate) const;
  // Of a push that arrives: its worker counts from now on.
  void Count(Source& source, uint64_t step) noexcept;
  Waiting Take(uint32_t worker);
  void TakeOfAll();
  void TakeOldest();
  Status PrepareArrays();
  void Updated();
  void Fail(const Status& reason);
  bool IsReady(const WaitingPull& pull, uint64_t smallest) const noexcept;
  PullAnswer AnswerTo(const WaitingPull& pull);
  ::zmq::message_t Gather(const WaitingPull& pull, const float* values) const;

  const CellRules& rules_;
  const CellSpec spec_;
  const uint32_t first_worker_;
  ServedArray arrays_[kMaxServedArrays];  // values, states
  std::vector<Source> sources_;           // by worker
  std::vector<uint32_t> arrivals_;        // not kSync: whose pushes are to be applied, in order
  uint32_t applying_ = 0;                 // not kSync: whose push the task applies
  uint64_t applying_step_ = 0;            // ... of which step
  std::vector<WaitingPull> pulls_;
  std::optional<uint64_t> origin_;  // the step before the first one that was pushed
  Status failure_;                  // of an update; what is asked of the cell fails with it
  bool busy_ = false;               // an update is under way
  UpdateTask task_;                 // the one under way, else the last one
};

}  // namespace engine::zmq_ps
