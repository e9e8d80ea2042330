// Errors of the CUDA runtime as Status.
#pragma once

#include "cuda_kit/error.h"

namespace engine::nccl {

using cuda_kit::ToStatus;

}  // namespace engine::nccl
