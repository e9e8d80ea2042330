#include "core/base/store.h"

namespace engine::base {

Status CheckStoreSizes(std::string_view key, std::string_view value) {
  if (key.size() <= kMaxKeyBytes && value.size() <= kMaxValueBytes) return {};
  return Status::Error(StatusCode::kInvalidArgument,
                       "a store key of %zu bytes with a value of %zu; the limits are %u and %u",
                       key.size(), value.size(), kMaxKeyBytes, kMaxValueBytes);
}

Status StoreTimeout(std::string_view key, int64_t timeout_ms) {
  return Status::Error(StatusCode::kTimeout, "no rank set '%.*s' in the store within %lld ms",
                       static_cast<int>(key.size()), key.data(),
                       static_cast<long long>(timeout_ms));
}

}  // namespace engine::base
