// A run of ranks over socket pairs within one test process: the real server, supervisor and
// clients, without processes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/launch/store_client.h"
#include "core/launch/supervisor.h"

namespace engine {

inline constexpr int64_t kLongMs = 20000;  // a deadline that only a bug reaches

class SocketRun {
 public:
  explicit SocketRun(int world_size, int64_t rendezvous_timeout_ms = kLongMs,
                     const std::string& job = "job")
      : supervisor_(world_size, job, "the test", rendezvous_timeout_ms, [](int) {
          return Supervisor::Loss{Status::Error(StatusCode::kPeerLost, "its connection ended"),
                                  200};
        }) {}

  ~SocketRun() { Finish(); }

  // The rank's end of a new connection. Call before Start.
  UniqueFd Connect() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    supervisor_.server().Adopt(UniqueFd(pair[0]));
    return UniqueFd(pair[1]);
  }

  void Start() {
    thread_ = std::thread([this] {
      while (!quit_) {
        std::vector<pollfd> fds;
        supervisor_.server().AddPollFds(&fds);
        poll(fds.data(), fds.size(), 5);
        supervisor_.server().Handle();
        supervisor_.Tick();
      }
      supervisor_.server().CloseAll();
    });
  }

  // Ends the server; then the supervisor may be asked.
  Supervisor& Finish() {
    quit_ = true;
    if (thread_.joinable()) thread_.join();
    return supervisor_;
  }

 private:
  Supervisor supervisor_;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

// One rank of a SocketRun.
struct SocketRank {
  SocketRank(UniqueFd socket, int rank, int world_size, const std::string& job = "job")
      : client(std::move(socket), {rank, world_size, job, "the server", -1}, abort,
               [this](int signal) { stop = signal; }) {}

  AbortSignal abort;
  std::atomic<int> stop{0};
  StoreClient client;
};

}  // namespace engine
