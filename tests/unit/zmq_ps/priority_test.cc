// Urgent slices overtake others at both ends.
#include <algorithm>
#include <mutex>

#include "cluster.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

// Writes down the keys of what is sent; while `closed`, nothing can be.
class RecordingLink final : public Link {
 public:
  struct Record {
    std::mutex mutex;
    bool closed = false;
    MessageKind kind = MessageKind::kPush;
    std::vector<uint64_t> keys;
  };
  RecordingLink(std::unique_ptr<Link> inner, Record* record)
      : inner_(std::move(inner)), record_(record) {}

  bool Writable() override { return !Closed() && inner_->Writable(); }
  void* socket() override { return inner_->socket(); }
  bool Receive(Message* out) override { return inner_->Receive(out); }
  bool Send(Message& message) override {
    if (Closed()) return false;
    Header header;
    const char* const objection = Decode(message.header, &header);
    const bool result = inner_->Send(message);
    const std::lock_guard lock(record_->mutex);
    if (!objection && result && header.kind == record_->kind) {
      record_->keys.push_back(header.key);
    }
    return result;
  }

 private:
  bool Closed() const {
    const std::lock_guard lock(record_->mutex);
    return record_->closed;
  }

  const std::unique_ptr<Link> inner_;
  Record* const record_;
};

void SetClosed(RecordingLink::Record& record, bool closed) {
  const std::lock_guard lock(record.mutex);
  record.closed = closed;
}

// Transfers of rising priority while nothing can leave; then everything leaves. Endpoint 0 is the
// server, 1 the worker.
std::vector<uint64_t> KeysInOrder(uint32_t endpoint, MessageKind kind) {
  RecordingLink::Record record;
  record.kind = kind;
  ClusterSettings settings{.workers = 1, .servers = 1};
  settings.faults = [&](uint32_t index) -> LinkWrapper {
    if (index != endpoint) return {};
    return [&](std::unique_ptr<Link> link) {
      return std::make_unique<RecordingLink>(std::move(link), &record);
    };
  };
  Cluster cluster(settings);
  if (!cluster.ok()) return {};
  SetClosed(record, true);
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
  SetClosed(record, false);
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
