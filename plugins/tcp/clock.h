// Points of the monotonic clock.
#pragma once

#include "kit/communicator.h"

namespace engine::tcp {

using kit::Clock;
using kit::DeadlineIn;
using kit::MillisecondsUntil;
using kit::MonotonicNs;

}  // namespace engine::tcp
