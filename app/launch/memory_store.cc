#include "app/launch/memory_store.h"

#include <functional>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/store.h"

namespace engine::launch {

MemoryStore::MemoryStore(std::shared_ptr<MemoryTable> table, base::AbortSignal& abort,
                         bool hears_posts)
    : table_(std::move(table)), abort_(abort) {
  token_ = abort_.Listen([shared = table_](const Status&) {
    // Under the lock, so that a waiter is either before its look at raised() or already waiting.
    std::lock_guard lock(shared->mutex);
    shared->changed.notify_all();
  });
  if (!hears_posts) return;
  const std::lock_guard lock(table_->posts_mutex);
  table_->queues.push_back(&posts_);
}

MemoryStore::~MemoryStore() {
  {
    const std::lock_guard lock(table_->posts_mutex);
    std::erase(table_->queues, &posts_);
  }
  abort_.Forget(token_);
}

Status MemoryStore::Set(std::string_view key, std::string_view value) {
  ENGINE_RETURN_IF_ERROR(base::CheckStoreSizes(key, value));
  if (abort_.raised()) return abort_.reason();
  table_->Put(key, value);
  return {};
}

Result<std::string> MemoryStore::Get(std::string_view key, int64_t timeout_ms) {
  ENGINE_RETURN_IF_ERROR(base::CheckStoreSizes(key, {}));
  base::TimePoint deadline = base::DeadlineIn(timeout_ms);
  std::unique_lock lock(table_->mutex);
  auto found = table_->values.end();
  table_->changed.wait_until(lock, deadline, [&] {
    found = table_->values.find(key);
    return found != table_->values.end() || abort_.raised();
  });
  if (abort_.raised()) return abort_.reason();
  if (found == table_->values.end()) return base::StoreTimeout(key, timeout_ms);
  return found->second;
}

Result<bool> MemoryStore::Has(std::string_view key) {
  ENGINE_RETURN_IF_ERROR(base::CheckStoreSizes(key, {}));
  if (abort_.raised()) return abort_.reason();
  std::lock_guard lock(table_->mutex);
  return table_->values.contains(key);
}

Status MemoryStore::Post(std::string_view text) {
  ENGINE_RETURN_IF_ERROR(base::CheckStoreSizes({}, text));
  if (abort_.raised()) return abort_.reason();
  const std::lock_guard lock(table_->posts_mutex);
  for (MessageQueue* queue : table_->queues) {
    if (queue != &posts_) queue->Deliver(text);
  }
  return {};
}

void MemoryStore::Listen(std::function<void(std::string_view)> listener) {
  posts_.Listen(std::move(listener));
}

}  // namespace engine::launch
