// Ways to sum float32 arrays of all ranks in place, behind one interface.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/host.h"

namespace engine::bench {

constexpr int64_t kOperationTimeoutMs = 30000;

// Failures are exceptions, as in gloo. Every call is collective and has a deadline.
class AllReducer {
 public:
  virtual ~AllReducer() = default;
  virtual void Prepare(float* data, int64_t count) = 0;  // `data` outlives its runs
  virtual void Run() = 0;  // returns when `data` holds the sum over the ranks
};

void ThrowIfError(const Status& status);

constexpr const char* kAllReducerNames[] = {"plugin", "ring", "halving-doubling", "bcube"};

// By name: the communicator of the library at `plugin` with its default options, and gloo's
// algorithms over TCP on the loopback interface. The ranks meet in the store of `host`, which
// outlives the result, and in `folder`, which is empty at first.
std::vector<std::unique_ptr<AllReducer>> ConnectAll(const std::string& plugin, Host& host,
                                                    const std::filesystem::path& folder);

}  // namespace engine::bench
