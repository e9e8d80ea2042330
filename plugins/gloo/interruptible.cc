#include "interruptible.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

namespace engine::gloo {

using std::chrono::milliseconds;

namespace {

// For Gloo: it closes all connections when a wait of its own runs out, before this rank can tell
// the others why. So none does: the communicator ends waits with an interrupt.
constexpr milliseconds kNoTimeout = std::chrono::hours(24 * 365);

}  // namespace

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
    return Ended(buffer_->waitRecv(rank, kNoTimeout));
  }
  bool waitSend(int* rank, milliseconds) override {
    interrupt_->peer_.store(target_, std::memory_order_relaxed);
    return Ended(buffer_->waitSend(rank, kNoTimeout));
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
  static bool Ended(bool done) {
    if (!done) throw ::gloo::IoException("interrupted");
    return true;
  }

  const std::unique_ptr<UnboundBuffer> buffer_;
  const std::shared_ptr<Interrupt> interrupt_;
  int target_ = -1, source_ = -1;  // of the last send and recv
};

// Under the mutex, so that no buffer of the set ends meanwhile. One that is made later finds
// raised_.
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

// Each pair gets a receive that no peer ever answers: slots of collectives are not 0. When the pair
// fails, Gloo tells the buffers of its receives.
void InterruptibleContext::Connect(::gloo::rendezvous::Store& store,
                                   std::shared_ptr<::gloo::transport::Device> device) {
  connectFullMesh(store, device);
  for (int peer = 0; peer < size; ++peer) {
    sentinels_.push_back(peer == rank ? nullptr
                                      : transportContext_->createUnboundBuffer(nullptr, 0));
    if (peer != rank) sentinels_.back()->recv(peer, 0, 0, 0);
  }
  transportContext_ = std::make_shared<BufferFactory>(transportContext_, interrupt_);
}

// A wait that is aborted before it begins ends at once: it throws if the pair has failed.
std::vector<int> InterruptibleContext::BrokenPeers() {
  const std::lock_guard lock(sentinels_mutex_);
  std::vector<int> broken;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    auto& sentinel = *sentinels_[static_cast<size_t>(peer)];
    try {
      sentinel.abortWaitRecv();
      (void)sentinel.waitRecv(nullptr, kNoTimeout);
    } catch (const std::exception&) {
      broken.push_back(peer);
    }
  }
  return broken;
}

}  // namespace engine::gloo
