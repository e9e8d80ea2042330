// The store of ranks that are threads of one test.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/launch/message_queue.h"
#include "core/base/rank_context.h"
#include "tests/support/memory_host.h"

namespace engine::test {

// What the ranks share.
struct MemoryTable {
  MemoryStoreTable values;

  std::mutex mutex;                           // held while a post is delivered
  std::vector<launch::MessageQueue*> queues;  // guarded by mutex; of every rank
};

// One rank's view. Calls fail once `abort` is raised; it does not wake one that waits.
class MemoryStore : public base::Store {
 public:
  MemoryStore(std::shared_ptr<MemoryTable> table, base::AbortSignal& abort)
      : table_(std::move(table)), abort_(abort) {
    const std::lock_guard lock(table_->mutex);
    table_->queues.push_back(&posts_);
  }
  ~MemoryStore() override {
    const std::lock_guard lock(table_->mutex);
    std::erase(table_->queues, &posts_);
  }

  Status Set(std::string_view key, std::string_view value) override {
    if (abort_.raised()) return abort_.reason();
    table_->values.Set(key, std::string(value));
    return {};
  }
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override {
    if (abort_.raised()) return abort_.reason();
    std::string value;
    if (!table_->values.Get(key, timeout_ms, &value)) return base::StoreTimeout(key, timeout_ms);
    return value;
  }
  Result<bool> Has(std::string_view key) override {
    if (abort_.raised()) return abort_.reason();
    return table_->values.Has(key);
  }
  Status Post(std::string_view text) override {
    const std::lock_guard lock(table_->mutex);
    for (launch::MessageQueue* queue : table_->queues) {
      if (queue != &posts_) queue->Deliver(text);
    }
    return {};
  }
  void Listen(std::function<void(std::string_view)> listener) override {
    posts_.Listen(std::move(listener));
  }

 private:
  const std::shared_ptr<MemoryTable> table_;
  base::AbortSignal& abort_;
  launch::MessageQueue posts_;
};

}  // namespace engine::test
