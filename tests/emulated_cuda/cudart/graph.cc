#include "tests/emulated_cuda/cudart/graph.h"

#include <algorithm>

namespace emulated_cuda {

std::vector<std::shared_ptr<Task>> Graph::InOrder(Order order) const {
  std::vector<std::shared_ptr<Task>> tasks;
  std::vector<bool> done(nodes.size(), false);
  std::vector<uint32_t> turns;
  Fill(order, nodes.size(), &turns);
  const auto is_ready = [&](uint32_t i) {
    return !done[i] && std::all_of(nodes[i].after.begin(), nodes[i].after.end(),
                                   [&](size_t before) { return done[before]; });
  };
  while (tasks.size() < nodes.size()) {
    const uint32_t next = *std::find_if(turns.begin(), turns.end(), is_ready);
    done[next] = true;
    tasks.push_back(nodes[next].task);
  }
  return tasks;
}

std::set<size_t> Graph::Before(const std::vector<size_t>& tips) const {
  std::set<size_t> found;
  std::vector<size_t> open = tips;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (!found.insert(node).second) continue;
    open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return found;
}

}  // namespace emulated_cuda
