// A run of ranks over socket pairs within one test process: the real server, supervisor and
// clients, without processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/launch/store_client.h"
#include "app/launch/supervisor.h"

namespace engine::launch {

inline constexpr int64_t kLongMs = 20000;  // a deadline that only a bug reaches

class SocketRun {
 public:
  explicit SocketRun(int world_size, int64_t rendezvous_timeout_ms = kLongMs,
                     const std::string& job = "job")
      : SocketRun(SettingsOf({world_size, 0, true}, rendezvous_timeout_ms, job)) {}
  explicit SocketRun(Supervisor::Settings settings)
      : supervisor_(WithNotice(std::move(settings))) {}

  static Supervisor::Settings SettingsOf(const RunShape& shape, int64_t rendezvous_timeout_ms,
                                         const std::string& job = "job") {
    return {.shape = shape,
            .job = job,
            .place = "the test",
            .options = {.rendezvous_timeout_ms = rendezvous_timeout_ms,
                        .liveness_timeout_ms = 0,
                        .server_leave_ms = kLongMs}};
  }

  ~SocketRun() { Finish(); }

  // The rank's end of a new connection. Call before Start.
  kit::UniqueFd Connect() { return supervisor_.server().Connect(); }

  void Start() {
    thread_ = std::thread([this] {
      while (!quit_) supervisor_.Step(5);
      supervisor_.server().CloseAll();
    });
  }

  // What the user was told of a run that goes on; waits until there are `count` lines.
  std::vector<std::string> Notices(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(told_.wait_for(lock, std::chrono::milliseconds(kLongMs),
                               [&] { return notices_.size() >= count; }));
    return notices_;
  }

  Supervisor& supervisor() { return supervisor_; }  // before Start, and after Finish

  // Ends the server; then the supervisor may be asked.
  Supervisor& Finish() {
    quit_ = true;
    if (thread_.joinable()) thread_.join();
    return supervisor_;
  }

 private:
  Supervisor::Settings WithNotice(Supervisor::Settings settings) {
    settings.options.notice = [this](const std::string& sentence) {
      const std::lock_guard lock(mutex_);
      notices_.push_back(sentence);
      told_.notify_all();
    };
    return settings;
  }

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<std::string> notices_;  // guarded by mutex_
  Supervisor supervisor_;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

// One member of a SocketRun.
struct SocketRank {
  SocketRank(kit::UniqueFd socket, int member, int world_size, const std::string& job = "job",
             std::optional<ServerKey> key = {})
      : client(std::move(socket), {member, world_size, job, "the server", -1, std::move(key)},
               abort, [this](int signal, bool) { stop = signal; }) {}

  Status Join() { return client.Join(base::DeadlineIn(kLongMs)); }

  base::AbortSignal abort;
  std::atomic<int> stop{0};
  StoreClient client;
};

// What an abort signal says once it is raised.
inline Status Await(base::AbortSignal& abort) {
  base::TimePoint deadline = base::DeadlineIn(kLongMs);
  while (!abort.raised() && !base::Passed(deadline)) std::this_thread::yield();
  return abort.reason();
}

// Of a connection without a client.
inline void SendRaw(const kit::UniqueFd& socket, const std::string& bytes) {
  EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
}
inline Message ReadMessage(const kit::UniqueFd& socket) {
  char buffer[4096];
  const ssize_t size = recv(socket.get(), buffer, sizeof(buffer), 0);
  MessageReader reader;
  reader.Append(buffer, size < 0 ? 0 : static_cast<size_t>(size));
  Message message;
  EXPECT_TRUE(*reader.Next(&message));
  return message;
}

inline Message Hello(int member, int32_t world_size = 0, uint32_t version = kProtocolVersion,
                     const std::string& job = "job") {
  return {MessageKind::kHello, version, member, world_size, job, ""};
}

}  // namespace engine::launch
