#include "interruptible.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace engine::gloo {

using std::chrono::milliseconds;

// Forwards to a buffer of Gloo. An interrupt that comes before a wait is kept by that buffer, so
// none is lost.
class InterruptibleBuffer final : public ::gloo::transport::UnboundBuffer {
 public:
  InterruptibleBuffer(std::unique_ptr<UnboundBuffer> buffer, std::shared_ptr<Interrupt> interrupt)
      : UnboundBuffer(buffer->ptr, buffer->size),
        buffer_(std::move(buffer)),
        interrupt_(std::move(interrupt)) {
    const std::lock_guard lock(interrupt_->mutex_);
    interrupt_->buffers_.insert(buffer_.get());
    if (interrupt_->raised_) abortWaitRecv(), abortWaitSend();
  }
  ~InterruptibleBuffer() override {
    const std::lock_guard lock(interrupt_->mutex_);
    interrupt_->buffers_.erase(buffer_.get());
  }

  bool waitRecv(int* rank, milliseconds) override {
    interrupt_->peer_.store(source_, std::memory_order_relaxed);
    return Ended(buffer_->waitRecv(rank, Left()));
  }
  bool waitSend(int* rank, milliseconds) override {
    interrupt_->peer_.store(target_, std::memory_order_relaxed);
    return Ended(buffer_->waitSend(rank, Left()));
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }

  void send(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    interrupt_->peer_.store(target_ = peer, std::memory_order_relaxed);
    buffer_->send(peer, slot, offset, bytes);
  }
  void recv(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    interrupt_->peer_.store(source_ = peer, std::memory_order_relaxed);
    buffer_->recv(peer, slot, offset, bytes);
  }
  void recv(std::vector<int> peers, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(std::move(peers), slot, offset, bytes);
  }

 private:
  // The deadline is set by the thread that waits, before it does. At least something: for Gloo no time
  // is no limit.
  milliseconds Left() const {
    return milliseconds(std::max<int64_t>(kit::MillisecondsUntil(interrupt_->deadline_), 1));
  }
  static bool Ended(bool done) {
    if (!done) throw ::gloo::IoException("interrupted");
    return true;
  }

  const std::unique_ptr<UnboundBuffer> buffer_;
  const std::shared_ptr<Interrupt> interrupt_;
  int target_ = -1, source_ = -1;  // of the last send and recv
};

// Under the mutex, so that no buffer of the set ends meanwhile. One that is made later finds raised_.
void Interrupt::Raise() noexcept {
  const std::lock_guard lock(mutex_);
  raised_ = true;
  for (::gloo::transport::UnboundBuffer* const buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

namespace {

// Only makes buffers; pairs are those of the context inside.
class BufferFactory final : public ::gloo::transport::Context {
 public:
  BufferFactory(std::shared_ptr<Context> context, std::shared_ptr<Interrupt> interrupt)
      : Context(context->rank, context->size),
        context_(std::move(context)),
        interrupt_(std::move(interrupt)) {}

  std::unique_ptr<::gloo::transport::Pair>& getPair(int peer) override {
    return context_->getPair(peer);
  }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override {
    return context_->createPair(peer);
  }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                        size_t bytes) override {
    return std::make_unique<InterruptibleBuffer>(context_->createUnboundBuffer(data, bytes),
                                                 interrupt_);
  }

 private:
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Interrupt> interrupt_;
};

}  // namespace

void InterruptibleContext::Connect(::gloo::rendezvous::Store& store,
                                   std::shared_ptr<::gloo::transport::Device> device) {
  connectFullMesh(store, device);
  transportContext_ = std::make_shared<BufferFactory>(transportContext_, interrupt_);
}

}  // namespace engine::gloo
