// Points of the monotonic clock.
#pragma once

#include "engine/communicator_kit.h"

namespace engine::nccl {

using kit::Clock;
using kit::DeadlineIn;
using kit::MillisecondsUntil;
using kit::MonotonicNs;

}  // namespace engine::nccl
