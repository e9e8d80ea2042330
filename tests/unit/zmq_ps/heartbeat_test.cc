// Processes that stop without closing their connections are named. Each is a real one, and is
// stopped with SIGSTOP.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>

#include "server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {
namespace {

constexpr Heartbeat kHeartbeat{.interval_ms = 200, .timeout_ms = 600};
constexpr int64_t kLostAfterMs = 300;
// Much more than it takes (600 + 300 ms), much less than the 30 s of a transfer.
constexpr auto kTimeout = std::chrono::seconds(15);

// A process that runs `body` with the end of a pipe, and stays until it is killed.
class Child {
 public:
  explicit Child(const std::function<void(int in, int out)>& body) {
    int to_child[2], from_child[2];
    EXPECT_EQ(pipe(to_child), 0);
    EXPECT_EQ(pipe(from_child), 0);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);  // whatever happens to the parent
      body(to_child[0], from_child[1]);
      _exit(0);
    }
    close(to_child[0]);
    close(from_child[1]);
    in_ = from_child[0];
    out_ = to_child[1];
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(in_);
    close(out_);
  }
  void Tell(const std::string& line) { Write(out_, line); }
  std::string Ask() { return Read(in_); }
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }

  static void Write(int pipe, const std::string& line) {
    EXPECT_EQ(write(pipe, (line + '\n').data(), line.size() + 1),
              static_cast<ssize_t>(line.size() + 1));
  }
  static std::string Read(int pipe) {
    std::string line;
    for (char c = 0; read(pipe, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

Result<std::unique_ptr<Server>> StartServer(uint32_t workers) {
  return Server::Start({.endpoint = "tcp://127.0.0.1:*",
                        .workers = workers,
                        .lost_after_ms = kLostAfterMs,
                        .heartbeat = kHeartbeat});
}

Result<std::unique_ptr<Worker>> Connect(uint32_t worker, uint32_t workers,
                                        const std::string& endpoint) {
  return Worker::Connect({.channel = {.worker = worker,
                                      .world_size = workers,
                                      .lost_after_ms = kLostAfterMs,
                                      .heartbeat = kHeartbeat},
                          .servers = {{endpoint, "", 0, true}}},
                         kit::DeadlineIn(20000));
}

Status Reduce(Worker& worker) {
  float value = 1;
  Works works;
  TransferWork* const work = *works.Take({.send = &value, .recv = &value, .count = 1, .key = 1});
  const Status refused = worker.Submit(work);
  if (!refused.ok()) work->Complete(refused);
  const Status status = work->WaitHost(40000);
  work->Release();
  return status;
}

TEST(HeartbeatTest, AServerThatStopsIsNamed) {
  Child child([](int, int out) {
    const auto server = StartServer(1);
    Child::Write(out, server.ok() ? (*server)->endpoint() : "");
    pause();
  });
  const auto worker = Connect(0, 1, child.Ask());
  ASSERT_TRUE(worker.ok()) << worker.status().message();
  ASSERT_TRUE(Reduce(**worker).ok());
  child.Stop();
  const Clock::time_point begin = Clock::now();
  const Status status = Reduce(**worker);
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
  EXPECT_EQ(ServerOfId(status.rank()), 0) << status.message();
  EXPECT_LT(Clock::now() - begin, kTimeout);
}

TEST(HeartbeatTest, AWorkerThatStopsIsNamed) {
  Child child([](int in, int out) {
    const auto worker = Connect(1, 2, Child::Read(in));
    Child::Write(out, worker.ok() && Reduce(**worker).ok() ? "ready" : "failed");
    pause();
  });
  const auto server = StartServer(2);
  ASSERT_TRUE(server.ok()) << server.status().message();
  child.Tell((*server)->endpoint());
  const auto worker = Connect(0, 2, (*server)->endpoint());
  ASSERT_TRUE(worker.ok()) << worker.status().message();
  ASSERT_TRUE(Reduce(**worker).ok());
  ASSERT_EQ(child.Ask(), "ready");
  child.Stop();
  const Clock::time_point begin = Clock::now();
  const Status status = Reduce(**worker);
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
  EXPECT_EQ(status.rank(), 1) << status.message();
  EXPECT_LT(Clock::now() - begin, kTimeout);
}

}  // namespace
}  // namespace engine::zmq_ps
