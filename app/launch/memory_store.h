// The store of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "app/launch/message_queue.h"
#include "core/base/rank_context.h"
#include "core/base/store.h"

namespace engine::launch {

// What the ranks share.
struct MemoryTable {
  std::mutex mutex;
  std::condition_variable changed;  // a key was set, or a rank is being aborted
  std::map<std::string, std::string, std::less<>> values;  // guarded by mutex
  void Put(std::string_view key, std::string_view value) {
    std::lock_guard lock(mutex);
    values.insert_or_assign(std::string(key), std::string(value));
    changed.notify_all();
  }

  std::mutex posts_mutex;  // held while a post is delivered; taken before that of a queue
  std::vector<MessageQueue*> queues;  // guarded by posts_mutex; of every rank that is there
};

// One rank's view: its waits end when `abort` is raised, which must outlive it.
class MemoryStore final : public base::Store {
 public:
  // `hears_posts`: false for a server.
  MemoryStore(std::shared_ptr<MemoryTable> table, base::AbortSignal& abort,
              bool hears_posts = true);
  ~MemoryStore() override;

  Status Set(std::string_view key, std::string_view value) override;
  Result<std::string> Get(std::string_view key, int64_t timeout_ms) override;
  Result<bool> Has(std::string_view key) override;
  Status Post(std::string_view text) override;
  void Listen(std::function<void(std::string_view)> listener) override;

 private:
  const std::shared_ptr<MemoryTable> table_;
  base::AbortSignal& abort_;
  MessageQueue posts_;
  int token_ = 0;
};

}  // namespace engine::launch
