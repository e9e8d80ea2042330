#include "tcp_kit/acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "kit/thread.h"

namespace engine::tcp {

// Anybody may connect. So nothing that is not a whole, proven hello has an effect; who does not
// send one is dropped after a while, or when too many do the same, the oldest first: a rank sends
// its hello with its first packet and is never the oldest for long.
constexpr size_t kMaxPending = 256;
constexpr std::chrono::seconds kHelloTimeout{10};
constexpr int kSweepMs = 1000;  // between two looks for those whose time is over

Acceptor::Acceptor(kit::UniqueFd listener, const Key& key, const kit::UniqueFd& stop, Take take)
    : listener_(std::move(listener)), key_(key), stop_(stop), take_(std::move(take)) {
  pending_.reserve(kMaxPending + 1);
  thread_ = kit::StartThread("tcp_accept", [this] { Loop(); });
}

Acceptor::~Acceptor() {
  thread_.join();
}

// One thread for all pending connections. Their sockets do not block, so none can hold up another.
void Acceptor::Loop() noexcept {
  while (true) {
    std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Pending& pending : pending_) entries.push_back({pending.socket.get(), POLLIN, 0});
    poll(entries.data(), entries.size(), pending_.empty() ? -1 : kSweepMs);
    if (entries[0].revents != 0) break;
    const auto now = std::chrono::steady_clock::now();
    size_t i = 2;  // entries and pending_ have the same order
    std::erase_if(pending_, [&](Pending& pending) {
      const bool readable = entries[i++].revents != 0;
      return now > pending.deadline || (readable && !Read(pending));
    });
    if (entries[1].revents != 0) AcceptOne();
  }
  // Whoever waits for an answer, or asks for one later, learns that there will be none.
  shutdown(listener_.get(), SHUT_RDWR);
  pending_.clear();
}

void Acceptor::AcceptOne() {
  kit::UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    // Without a descriptor left the connection stays in the queue: look again, but not at once.
    if (errno == EMFILE || errno == ENFILE) poll(nullptr, 0, 10);
    return;
  }
  pending_.push_back({.socket = std::move(socket),
                      .deadline = std::chrono::steady_clock::now() + kHelloTimeout,
                      .hello = {}});
  if (pending_.size() > kMaxPending) pending_.erase(pending_.begin());
}

// Takes no byte beyond the hello: what follows is for the lane.
bool Acceptor::Read(Pending& pending) noexcept {
  const int fd = pending.socket.get();
  auto* const bytes = reinterpret_cast<unsigned char*>(&pending.hello);
  const ssize_t received = recv(fd, bytes + pending.received, sizeof(Hello) - pending.received, 0);
  if (received < 0) return errno == EAGAIN || errno == EINTR;
  pending.received += static_cast<size_t>(received);
  if (received == 0) return false;
  if (pending.received < sizeof(Hello)) return true;
  if (!key_.Proves(pending.hello)) return false;
  fcntl(fd, F_SETFL, 0);  // blocking
  take_(pending.hello, std::move(pending.socket));
  return false;
}

}  // namespace engine::tcp
