// Points of the monotonic clock.
#pragma once

#include "kit/communicator.h"

namespace engine::zmq_ps {

using kit::Clock;
using kit::DeadlineIn;
using kit::MillisecondsUntil;
using kit::MonotonicNs;

}  // namespace engine::zmq_ps
