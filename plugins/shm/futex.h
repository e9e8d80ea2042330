// Sleeping on a word of memory that other processes map too.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine::shm {

// Sleeps while `word` is `expected`, at most `timeout_ns`, until somebody wakes it; may return at
// any time without a reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept;

// Wakes all that sleep on `word`, in all processes.
void FutexWake(std::atomic<uint32_t>& word) noexcept;

}  // namespace engine::shm
