// Updates of parameters in host memory of which ops read a copy in bfloat16.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/optimizer.h"
#include "kit/float16.h"
#include "kit/target_clones.h"

namespace engine::kit {

ENGINE_TARGET_CLONES inline void Round(const float* __restrict value, uint16_t* __restrict rounded,
                                       int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) rounded[i] = ToBFloat16(value[i]);
}

// Calls update(begin, count) for all elements of `call`. Where they have a copy, in blocks that the
// first-level cache still has when they are rounded.
template <typename Update>
void UpdateWithCopy(const UpdateCall& call, const Update& update) noexcept {
  if (call.value_bf16 == nullptr) return update(int64_t{0}, call.count);
  constexpr int64_t kBlock = 1024;
  for (int64_t begin = 0; begin < call.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, call.count - begin);
    update(begin, count);
    Round(call.value + begin, static_cast<uint16_t*>(call.value_bf16) + begin, count);
  }
}

}  // namespace engine::kit
