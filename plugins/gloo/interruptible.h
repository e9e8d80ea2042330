// A context of Gloo of which every wait can be ended from another thread, and which says for whom
// it waits and whose connection is broken.
//
// Gloo's collectives block the calling thread in UnboundBuffer::waitSend and waitRecv and create
// some of these buffers themselves. So the transport context, which makes all buffers, is wrapped.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace engine::gloo {

// What the waits of one context have in common.
class Interrupt {
 public:
  // Ends waits under way and later ones: they throw. [any-thread]
  void Raise() noexcept;
  // The peer of the last wait, also after it has failed; -1 before the first. [any-thread]
  int peer() const noexcept { return peer_.load(std::memory_order_relaxed); }

 private:
  friend class InterruptibleBuffer;
  std::mutex mutex_;
  std::set<::gloo::transport::UnboundBuffer*> buffers_;  // these two guarded by mutex_
  bool raised_ = false;
  std::atomic<int> peer_{-1};  // publishes nothing
};

class InterruptibleContext final : public ::gloo::rendezvous::Context {
 public:
  using Context::Context;
  // Connects all ranks. Throws.
  void Connect(::gloo::rendezvous::Store& store, std::shared_ptr<::gloo::transport::Device> device);
  Interrupt& interrupt() const noexcept { return *interrupt_; }
  // The ranks whose connections have failed. That a wait throws does not say which: Gloo's
  // algorithms send and receive with one buffer, and what throws is the wait that comes first.
  // [any-thread]
  std::vector<int> BrokenPeers();

 private:
  std::mutex sentinels_mutex_;
  // By rank, none for this one; guarded by sentinels_mutex_.
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> sentinels_;
  const std::shared_ptr<Interrupt> interrupt_ = std::make_shared<Interrupt>();
};

}  // namespace engine::gloo
