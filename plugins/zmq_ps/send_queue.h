// What waits to be sent to one peer.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace engine::zmq_ps {

// Largest priority first, and first in, first out among equals.
template <typename Item>
class SendQueue {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  const Item& top() const { return heap_.top().item; }
  void Push(int32_t priority, Item item) { heap_.push({priority, next_++, item}); }
  void Pop() { heap_.pop(); }
  void Clear() { heap_ = {}; }

 private:
  struct Entry {
    int32_t priority;
    uint64_t order;  // no two are equal, so the order is strict
    Item item;
    bool operator<(const Entry& other) const {
      return priority != other.priority ? priority < other.priority : order > other.order;
    }
  };
  std::priority_queue<Entry> heap_;
  uint64_t next_ = 0;
};

}  // namespace engine::zmq_ps
