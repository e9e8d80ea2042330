// Urgent slices overtake others at both ends.
#include <algorithm>
#include <mutex>

#include "cluster.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

// Writes down the keys of what is sent; while `closed`, nothing can be.
struct Record {
  SendFault See(const Message* message) {
    const std::lock_guard lock(mutex);
    if (closed) return SendFault::kNoRoom;
    Header header;
    if (message && !Decode(message->header, &header) && header.kind == kind) {
      keys.push_back(header.key);
    }
    return SendFault::kNone;
  }
  void SetClosed(bool is_closed) {
    const std::lock_guard lock(mutex);
    closed = is_closed;
  }

  const MessageKind kind;
  std::mutex mutex;
  bool closed = false;
  std::vector<uint64_t> keys;
};

// Transfers of rising priority while nothing can leave; then everything leaves. Endpoint 0 is the
// server, 1 the worker.
std::vector<uint64_t> KeysInOrder(uint32_t endpoint, MessageKind kind) {
  Record record{.kind = kind};
  ClusterSettings settings{.workers = 1, .servers = 1};
  settings.faults = [&](uint32_t index) -> FaultInjector {
    if (index != endpoint) return {};
    return [&](const Message* message) { return record.See(message); };
  };
  Cluster cluster(settings);
  if (!cluster.ok()) return {};
  record.SetClosed(true);
  constexpr uint64_t kKeys = 6;
  std::vector<std::vector<float>> data(kKeys, std::vector<float>(5000, 1.0f));
  std::vector<Work*> works(kKeys);
  for (uint64_t i = 0; i < kKeys; ++i) {
    const Transfer transfer{.send = data[i].data(),
                            .recv = data[i].data(),
                            .count = 5000,
                            .key = i + 1,
                            .priority = static_cast<int32_t>(i / 2)};
    EXPECT_TRUE(cluster.Submit(0, transfer, &works[i]).ok());
  }
  // A server's answers are all waiting when it has all pushes.
  while (endpoint == 0 && cluster.server(0).traffic().payload_in < kKeys * 20000) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // For a worker it is enough that Submit has returned: the thread takes all of them at once, or
  // those that came first wait in the queue already.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  record.SetClosed(false);
  for (Work* work : works) {
    EXPECT_TRUE(work->WaitHost(30000).ok());
    work->Release();
  }
  const std::lock_guard lock(record.mutex);
  return record.keys;
}

const std::vector<uint64_t> kUrgentFirstThenInOrder = {5, 6, 3, 4, 1, 2};

TEST(Priority, IsHonouredByTheWorker) {
  EXPECT_EQ(KeysInOrder(1, MessageKind::kPush), kUrgentFirstThenInOrder);
}

TEST(Priority, IsHonouredByTheServer) {
  EXPECT_EQ(KeysInOrder(0, MessageKind::kAnswer), kUrgentFirstThenInOrder);
}

}  // namespace
}  // namespace engine::zmq_ps
