// Rank 0 writes a checkpoint, and who waits for it does so as long as it gets on: a slow disk may take
// longer than a transfer is allowed to, but not without writing anything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/store.h"

namespace engine::run {

// Of rank 0: what to call whenever more is on the disk. Tells who waits, now and then.
std::function<void()> CheckpointProgress(base::Store& store);

// kTimeout of rank 0, which has told no progress for `timeout_ms`.
Status DiskStandsStill(int64_t timeout_ms);

// Waits until rank 0 has set `key`, or for DiskStandsStill.
Status AwaitCheckpoint(base::Store& store, const std::string& key, int64_t timeout_ms);

}  // namespace engine::run
