// Recordings of streams: which work there is, and what it comes after.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/emulated_cuda/cudart/order.h"
#include "tests/emulated_cuda/cudart/stream.h"

namespace emulated_cuda {

struct Node {
  std::shared_ptr<Task> task;
  std::vector<size_t> after;  // nodes
};

struct Graph {
  std::vector<Node> nodes;

  // One order that the dependencies allow, of those that `order` prefers: the earliest recorded
  // work first, or the latest.
  std::vector<std::shared_ptr<Task>> InOrder(Order order) const;
  // The nodes that `tips` come after, and they themselves.
  std::set<size_t> Before(const std::vector<size_t>& tips) const;
};

struct Capture {
  Graph graph;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool failed = false;
};

// An instantiated graph. Launches of it do not overlap.
struct Executable {
  std::vector<std::shared_ptr<Task>> tasks;
  std::mutex running;
};

}  // namespace emulated_cuda
