// Urgent slices overtake others at both ends.
#include <chrono>
#include <mutex>
#include <thread>

#include "cluster.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

// Writes down the keys of the tensors that an endpoint sends; while it is closed nothing leaves it.
class Record {
 public:
  SendFault See(const Message* message) {
    Header header;
    const bool is_tensor = message && !Decode(message->header, &header) &&
                           message->body.size() > 0 && header.request > 0;
    const std::lock_guard lock(mutex_);
    if (is_tensor) next_ = header.key;
    if (is_tensor && !closed_) keys_.push_back(header.key);
    return closed_ ? SendFault::kNoRoom : SendFault::kNone;
  }
  void SetClosed(bool closed) {
    const std::lock_guard lock(mutex_);
    closed_ = closed;
  }
  std::vector<uint64_t> keys() {
    const std::lock_guard lock(mutex_);
    return keys_;
  }
  // What goes first, or would if it could.
  uint64_t next() {
    const std::lock_guard lock(mutex_);
    return next_;
  }

 private:
  std::mutex mutex_;
  bool closed_ = false;  // these guarded by mutex_
  uint64_t next_ = 0;
  std::vector<uint64_t> keys_;
};

template <typename Predicate>
void Await(const Predicate& predicate) {
  while (!predicate()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Transfers of rising priority while nothing can leave one end, and a last, urgent one; then
// everything leaves.
std::vector<uint64_t> KeysInOrder(bool server_is_closed) {
  Record records[2];  // of the server, and of the worker
  Record& closed = records[server_is_closed ? 0 : 1];
  ClusterSettings settings{.workers = 1, .servers = 1};
  settings.faults = [&](uint32_t endpoint) -> FaultInjector {
    return [&record = records[endpoint]](const Message* message) { return record.See(message); };
  };
  Cluster cluster(settings);
  if (!cluster.ok()) return {};
  closed.SetClosed(true);
  constexpr uint64_t kKeys = 7;
  std::vector<std::vector<float>> data(kKeys, std::vector<float>(5000, 1.0f));
  std::vector<Work*> works(kKeys);
  for (uint64_t i = 0; i < kKeys; ++i) {
    const Transfer transfer{.send = data[i].data(),
                            .recv = data[i].data(),
                            .count = 5000,
                            .key = i + 1,
                            .priority = static_cast<int32_t>(i / 2)};
    // The server has all others when it has the last one, which was sent behind them.
    if (server_is_closed && i + 1 == kKeys) Await([&] { return records[1].keys().size() == i; });
    EXPECT_TRUE(cluster.Submit(0, transfer, &works[i]).ok());
  }
  if (server_is_closed) {
    Await([&] { return closed.next() == kKeys; });
  } else {
    // It is enough that Submit has returned: the thread takes all of them at once, or those that
    // came first wait in the queue already.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  closed.SetClosed(false);
  for (Work* work : works) EXPECT_TRUE(Finish(work).ok());
  return closed.keys();
}

const std::vector<uint64_t> kUrgentFirstThenInOrder = {7, 5, 6, 3, 4, 1, 2};

TEST(Priority, IsHonouredByTheWorker) {
  EXPECT_EQ(KeysInOrder(false), kUrgentFirstThenInOrder);
}

TEST(Priority, IsHonouredByTheServer) {
  EXPECT_EQ(KeysInOrder(true), kUrgentFirstThenInOrder);
}

}  // namespace
}  // namespace engine::zmq_ps
