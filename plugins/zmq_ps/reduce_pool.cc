#include "reduce_pool.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kBlockElements = 4096;

char* At(::zmq::message_t& message, size_t element, size_t element_bytes) {
  return static_cast<char*>(message.data()) + element * element_bytes;
}

size_t BytesOf(const PoolTask& task) {
  if (const auto* const update = std::get_if<UpdateTask*>(&task)) return (*update)->bytes();
  return std::get<ReduceTask>(task).bytes();
}

void RunEither(PoolTask& task) {
  if (auto* const update = std::get_if<UpdateTask*>(&task)) return Run(**update);
  Run(std::get<ReduceTask>(task));
}

}  // namespace

void Run(ReduceTask& task) {
  const ReduceKernels& kernels = *task.kernels;
  const size_t stored_bytes =
      task.count == 0 ? 0 : task.inputs.front().size() / task.count;  // per element
  size_t first = 0;
  ::zmq::message_t& accumulator = task.accumulator;
  bool load = false;
  if (accumulator.size() == 0) {
    load = !kernels.in_place;
    first = 1;
    if (kernels.in_place) {
      accumulator = std::move(task.inputs.front());
    } else {
      accumulator.rebuild(task.count * kernels.accumulator_bytes);
    }
  }
  for (size_t begin = 0; begin < task.count; begin += kBlockElements) {
    const size_t count = std::min(kBlockElements, task.count - begin);
    char* const target = At(accumulator, begin, kernels.accumulator_bytes);
    if (load) kernels.load(target, At(task.inputs.front(), begin, stored_bytes), count);
    for (size_t i = first; i < task.inputs.size(); ++i) {
      kernels.fold(target, At(task.inputs[i], begin, stored_bytes), count);
    }
  }
  if (task.last && !kernels.in_place) {
    ::zmq::message_t result(task.count * stored_bytes);
    kernels.store(result.data(), accumulator.data(), task.count);
    accumulator = std::move(result);
  }
  task.inputs.clear();
}

ReducePool::ReducePool(int threads, std::function<void(PoolTask)> done) : done_(std::move(done)) {
  for (int i = 0; i < threads; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->thread = std::thread([this, lane = lanes_.back().get()] { Loop(*lane); });
  }
}

ReducePool::~ReducePool() {
  for (const auto& lane : lanes_) {
    const std::lock_guard lock(lane->mutex);
    lane->stop = true;
    lane->changed.notify_one();
  }
  for (const auto& lane : lanes_) lane->thread.join();
}

int ReducePool::Choose() const noexcept {
  int best = 0;
  size_t least = SIZE_MAX;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const std::lock_guard lock(lanes_[i]->mutex);
    if (lanes_[i]->bytes >= least) continue;
    least = lanes_[i]->bytes;
    best = static_cast<int>(i);
  }
  return best;
}

void ReducePool::Submit(int thread, PoolTask task) {
  Lane& lane = *lanes_[static_cast<size_t>(thread)];
  const std::lock_guard lock(lane.mutex);
  lane.bytes += BytesOf(task);
  lane.tasks.push_back(std::move(task));
  lane.changed.notify_one();
}

void ReducePool::Loop(Lane& lane) noexcept {
  PrepareThread("zmq_ps_reduce");
  std::unique_lock lock(lane.mutex);
  while (true) {
    lane.changed.wait(lock, [&] { return lane.stop || !lane.tasks.empty(); });
    if (lane.tasks.empty()) return;
    PoolTask task = std::move(lane.tasks.front());
    lane.tasks.pop_front();
    const size_t bytes = BytesOf(task);
    lock.unlock();
    RunEither(task);
    done_(std::move(task));
    lock.lock();
    lane.bytes -= bytes;
  }
}

}  // namespace engine::zmq_ps
