// Key-value store shared by all ranks of a run, and the way a rank learns that the run is over.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine {

class Store {
 public:
  virtual ~Store() = default;
  // Replaces what is there. [any-thread]
  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists. kTimeout names the key; the reason of the abort when the run is
  // aborted. [any-thread]
  virtual Result<std::string> Get(std::string_view key, int64_t timeout_ms) = 0;
  virtual Result<bool> Has(std::string_view key) = 0;  // [any-thread]
};

}  // namespace engine
