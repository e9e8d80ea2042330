// Points of the monotonic clock.
#pragma once

#include "kit/communicator.h"

namespace engine::nccl {

using kit::Clock;
using kit::DeadlineIn;
using kit::MillisecondsUntil;
using kit::MonotonicNs;

}  // namespace engine::nccl
