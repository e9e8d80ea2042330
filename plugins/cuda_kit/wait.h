// Waiting for a GPU with a deadline, which the runtime does not offer.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "error.h"
#include "kit/deadline.h"

namespace engine::cuda_kit {

// Asks `query` until it is no longer cudaErrorNotReady; kTimeout names `what`. Most waits are
// short, so it spins first.
template <typename Query>
Status WaitFor(const Query& query, int64_t timeout_ms, const char* what) noexcept {
  const kit::Clock::time_point begin = kit::Clock::now(), deadline = kit::DeadlineIn(timeout_ms);
  for (;;) {
    const cudaError_t error = query();
    if (error != cudaErrorNotReady) return ToStatus(error, what);
    const kit::Clock::time_point now = kit::Clock::now();
    if (now >= deadline) {
      return Status::Error(StatusCode::kTimeout, "%s did not end within %lld ms", what,
                           static_cast<long long>(timeout_ms));
    }
    if (now - begin > std::chrono::microseconds(200)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

}  // namespace engine::cuda_kit
