// Reductions of the fake NCCL, in rank order.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace fake_nccl {

// Bytes of an element; 0 for a type that the fake does not know.
size_t SizeOf(ncclDataType_t type);

// target[i] = sources[0][i] op sources[1][i] op ..., from left to right, in float for floats.
void Reduce(ncclDataType_t type, ncclRedOp_t operation, const uint8_t* const* sources, int ranks,
            size_t count, uint8_t* target);

}  // namespace fake_nccl
