// Takes the connections of other ranks while the run goes on.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tcp_kit/handshake.h"
#include "tcp_kit/socket.h"

namespace engine::tcp {

class Acceptor {
 public:
  // Called on the thread tcp_accept with a blocking socket whose peer has proved its key.
  using Take = std::function<void(const Hello& hello, kit::UniqueFd socket)>;

  // Runs until `stop`, which outlives it, is readable. Then nobody can connect any more.
  Acceptor(kit::UniqueFd listener, const Key& key, const kit::UniqueFd& stop, Take take);
  ~Acceptor();

 private:
  // A connection whose hello is not complete.
  struct Pending {
    kit::UniqueFd socket;
    std::chrono::steady_clock::time_point deadline;
    Hello hello;
    size_t received = 0;
  };

  void Loop() noexcept;
  void AcceptOne();
  bool Read(Pending& pending) noexcept;  // false: it is done with

  const kit::UniqueFd listener_;
  const Key key_;
  const kit::UniqueFd& stop_;
  const Take take_;
  std::vector<Pending> pending_;  // the oldest first; of the thread
  std::thread thread_;
};

}  // namespace engine::tcp
