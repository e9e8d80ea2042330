// Makes an op of float32 one whose activations are bfloat16.
#pragma once

#include <memory>

#include "cpu_op.h"

namespace engine::cpu_ops {

// `op`, which rounds and widens at its border unless it TakesBFloat16. Null when memory is out.
Op* WithFloat32Border(std::unique_ptr<CpuOp> op) noexcept;

}  // namespace engine::cpu_ops
