// Memory that a parameter server keeps values in, and that its answers are sent from.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>
#include <zmq.hpp>

namespace engine::zmq_ps {

// An array of floats that lies behind this, aligned to 64 bytes and zero at the start; referenced by
// its owner and by every message made of it.
struct alignas(64) ServedBuffer {
  // Null when there is no memory. The caller has the first reference.
  static ServedBuffer* Create(size_t count) noexcept;
  void Drop() noexcept;  // a reference; [any-thread]

  // A message over the buffer's memory, which refers to it until ZeroMQ is done with it.
  ::zmq::message_t Share(size_t count);

  // Whether only the owner refers to it: then nobody reads it, and what a former reader did with it
  // is over.
  bool IsAlone() const noexcept { return references.load(std::memory_order_acquire) == 1; }
  float* data() noexcept { return reinterpret_cast<float*>(this + 1); }

  std::atomic<int> references{1};
};

// The versions of one array: the newest one, and those that answers still refer to. An update
// writes into the newest in place if it is alone, else into another, which becomes the newest.
class ServedArray {
 public:
  ServedArray() = default;
  ~ServedArray();
  ServedArray(ServedArray&& other) noexcept : versions_(std::move(other.versions_)) {
    other.versions_.clear();
  }
  ServedArray(const ServedArray&) = delete;
  ServedArray& operator=(const ServedArray&) = delete;

  // Makes the first version, if there is none; false: no memory.
  bool Allocate(size_t count);
  bool empty() const noexcept { return versions_.empty(); }

  // What an update may write into: the newest version if it is alone, else one whose content means
  // nothing; null: no memory. What was the newest stays it until Publish.
  float* Writable(size_t count);
  // What Writable returned last becomes the newest. Frees versions that nobody reads, but for one,
  // so that the next copy finds memory.
  void Publish() noexcept;

  size_t versions() const noexcept { return versions_.size(); }
  float* newest() noexcept { return versions_.front()->data(); }
  ::zmq::message_t Share(size_t count) { return versions_.front()->Share(count); }

 private:
  std::vector<ServedBuffer*> versions_;  // the newest first
  size_t writable_ = 0;                  // index
};

}  // namespace engine::zmq_ps
