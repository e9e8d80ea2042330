// The dependencies of tasks, as an accelerator sees them: what the host queues without waiting runs
// there in the order of three streams, and every dependency between two of them is an event.
//
//   compute    | forward  backward ......  local hooks, packing | forward of the next step
//                   |        | |    |                                ^        ^
//   transfers       statistics bucket bucket  bucket            (gathers of parameters)
//                   |          |    |     |                          |
//   updates        scales     hooks, updates ........................
//
// Packing in a format with states needs a scale, and is of the stream "updates".
//
// The stream "transfers" here has no work but the waits for the ends of what the communicator
// carries out; it gives those ends events that are the executor's own.
#pragma once

#include <memory>
#include <vector>

#include "core/exec/task_graph.h"
#include "core/graph/device_buffer.h"

namespace engine::exec {

class DeviceOrder {
 public:
  // `compute` and `graph` are borrowed. `alone`: with one rank everything is queued on `compute`,
  // and what follows does nothing.
  static Result<std::unique_ptr<DeviceOrder>> Create(Device& device, Stream* compute,
                                                     const TaskGraph& graph, bool alone);

  // Where the work of a task is queued, and what a transfer sends is made. [any-thread]
  Stream* StreamOf(const Task& task) const { return streams_[QueuesFor(task)]; }
  Stream* updates() const { return streams_[kUpdates]; }
  // To wait for the end of a transfer that was submitted, or null; Mark then. [any-thread]
  Stream* transfers() const { return streams_[kTransfers]; }

  // What is queued for `task` from now on is behind all that it depends on. [compute-lane, as all
  // below]
  Status Wait(const Task& task);
  // Its work is queued: other streams may wait for it.
  Status Mark(const Task& task) { return Record(task.info.id, PlaceOf(task)); }

  // What is queued on the updates' stream from now on is behind `transfer`.
  Status Follow(const Task& transfer) { return Await(transfer.info.id, kUpdates); }

  // What the updates' stream reads of the step at hand it has read here; the compute stream waits
  // for that.
  Status MarkTaken() { return Record(taken_, kUpdates); }
  Status WaitTaken() { return Await(taken_, kCompute); }

  // What is queued on the compute stream from now on is behind everything.
  Status Join();

 private:
  enum Place : uint8_t { kCompute, kUpdates, kTransfers, kPlaces };
  // The end of a task, of which other streams have to know.
  struct Point {
    std::unique_ptr<Event> event;  // null: none has to
    uint8_t waiting = 0xff;        // bit by place: streams that are behind it already
  };

  DeviceOrder(Stream* compute, const TaskGraph& graph, bool alone);
  Place PlaceOf(const Task& task) const;
  Place QueuesFor(const Task& task) const {
    return PlaceOf(task) == kTransfers ? source_[task.info.id] : PlaceOf(task);
  }
  Status MakePoints(Device& device);
  Status Record(size_t point, Place place);
  Status Await(size_t point, Place place);

  const TaskGraph& graph_;
  const bool alone_;
  std::unique_ptr<Stream> own_[2];  // updates, transfers
  Stream* streams_[kPlaces] = {};
  std::vector<Place> source_;                 // by transfer: where what it sends is made
  std::vector<std::vector<uint32_t>> waits_;  // by task: those of other places that it depends on
  const size_t taken_;                        // these are points, too: behind those of the tasks
  const size_t joined_;                       // and the one of the other stream
  std::vector<Point> points_;
};

}  // namespace engine::exec
