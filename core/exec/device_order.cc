// Why no memory is written too early: each edge of the task graph, to the next step too, is kept by
// the order of a stream or by an event, so on the device tasks have the partial order that they had
// if the host waited for each, and the argument of step_loop.cc holds there: a backward task, the
// first to write to gradients again, is behind all forward tasks, these are behind the last task of
// each parameter, and those behind all transfers and updates that read gradients. What tasks share
// beside tensors is
//   * the scales of gradients, scratch of reduced hooks, StepScalars of updates: of the updates'
//     stream alone, which is in order;
//   * the statistics and the StepScalars of passes, which the updates' stream reads when the
//     statistics were summed up: the next step may write to them after MarkTaken.
//
// Why ranks do not wait for each other for ever: the host queues without waiting for the device, on
// one thread, and what it asks the scheduler depends on nothing else, so all ranks queue the same
// work in the same order. Each piece waits for pieces that were queued earlier on its rank, or for
// its own counterparts; the earliest that is not done on any rank can always go on. A call that
// blocks until the device has done what was queued before (loading a kernel, freeing memory) only
// waits for earlier pieces, too.
#include "core/exec/device_order.h"

namespace engine::exec {

Result<std::unique_ptr<DeviceOrder>> DeviceOrder::Create(Device& device, Stream* compute,
                                                         const TaskGraph& graph, bool alone) {
  std::unique_ptr<DeviceOrder> order(new DeviceOrder(compute, graph, alone));
  if (alone) return order;
  for (const Place place : {kUpdates, kTransfers}) {
    std::unique_ptr<Stream>& own = order->own_[place - 1];
    ENGINE_RETURN_IF_ERROR(graph::Make(device, &own));
    order->streams_[place] = own.get();
  }
  ENGINE_RETURN_IF_ERROR(order->MakePoints(device));
  return order;
}

DeviceOrder::DeviceOrder(Stream* compute, const TaskGraph& graph, bool alone)
    : graph_(graph),
      alone_(alone),
      source_(graph.tasks.size(), kCompute),
      waits_(graph.tasks.size()),
      taken_(graph.tasks.size()),
      joined_(taken_ + 1),
      points_(joined_ + 2) {
  streams_[kCompute] = streams_[kUpdates] = compute;
}

DeviceOrder::Place DeviceOrder::PlaceOf(const Task& task) const {
  if (alone_) return kCompute;
  if (task.info.kind == TaskKind::kTransfer) return kTransfers;
  return task.tail ? kUpdates : kCompute;
}

// Events only for what is awaited on another stream than it was queued on.
Status DeviceOrder::MakePoints(Device& device) {
  for (const Task& task : graph_.tasks) {
    if (PlaceOf(task) == kCompute) continue;
    for (const uint32_t next : task.successors) source_[next] = kUpdates;
  }
  std::vector<bool> awaited(points_.size());
  for (const Task& task : graph_.tasks) {
    for (const auto* successors : {&task.successors, &task.next_successors}) {
      for (const uint32_t next : *successors) {
        if (QueuesFor(graph_.tasks[next]) == PlaceOf(task)) continue;
        waits_[next].push_back(task.info.id);
        awaited[task.info.id] = true;
      }
    }
  }
  for (size_t point = 0; point < points_.size(); ++point) {
    if (!awaited[point] && point < taken_) continue;
    ENGINE_RETURN_IF_ERROR(graph::Make(device, &points_[point].event));
  }
  return {};
}

Status DeviceOrder::Record(size_t point, Place place) {
  if (points_[point].event == nullptr) return {};
  points_[point].waiting = 0;
  return streams_[place]->Record(points_[point].event.get());
}

// A stream is in order, so it waits for each point once.
Status DeviceOrder::Await(size_t point, Place place) {
  const auto bit = static_cast<uint8_t>(1u << place);
  if ((points_[point].waiting & bit) != 0) return {};
  points_[point].waiting |= bit;
  return streams_[place]->Wait(points_[point].event.get());
}

Status DeviceOrder::Wait(const Task& task) {
  for (const uint32_t earlier : waits_[task.info.id]) {
    ENGINE_RETURN_IF_ERROR(Await(earlier, QueuesFor(task)));
  }
  return {};
}

Status DeviceOrder::Join() {
  for (const Place place : {kUpdates, kTransfers}) {
    const size_t point = joined_ + (place == kTransfers ? 1 : 0);
    ENGINE_RETURN_IF_ERROR(Record(point, place));
    ENGINE_RETURN_IF_ERROR(Await(point, kCompute));
  }
  for (const Task& task : graph_.tasks) {
    const size_t point = task.info.id;
    const bool has_event = points_[point].event != nullptr && PlaceOf(task) == kTransfers;
    if (has_event) ENGINE_RETURN_IF_ERROR(Await(point, kCompute));
    points_[point].waiting = 0xff;
  }
  points_[taken_].waiting = 0xff;
  return {};
}

}  // namespace engine::exec
