// Key-value store shared by all ranks of a run, and the way a rank learns that the run is over.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine::base {

class Store {
 public:
  virtual ~Store() = default;
  // Replaces what is there. [any-thread]
  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists. kTimeout names the key; the reason of the abort when the run is
  // aborted. [any-thread]
  virtual Result<std::string> Get(std::string_view key, int64_t timeout_ms) = 0;
  virtual Result<bool> Has(std::string_view key) = 0;  // [any-thread]

  // Hands `text` to the listener of every other rank, in the order of the calls; does not wait for
  // them. What comes before there is a listener is kept for it. [any-thread]
  virtual Status Post(std::string_view text) = 0;
  // Called with each text on a thread of the store; must not block. Null ends it and waits for a
  // running call. [setup]
  virtual void Listen(std::function<void(std::string_view)> listener) = 0;
};

// True for what a member of a run says when it was stopped by the failure of another.
constexpr bool IsSecondary(StatusCode code) {
  return code == StatusCode::kAborted || code == StatusCode::kPeerLost;
}

// What every store says of a key that nobody has set.
inline Status StoreTimeout(std::string_view key, int64_t timeout_ms) {
  return Status::Error(StatusCode::kTimeout, "no rank set '%.*s' in the store within %lld ms",
                       static_cast<int>(key.size()), key.data(),
                       static_cast<long long>(timeout_ms));
}

}  // namespace engine::base
