// Points of the monotonic clock.
#pragma once

#include "engine/communicator_kit.h"

namespace engine::zmq_ps {

using kit::Clock;
using kit::DeadlineIn;
using kit::MillisecondsUntil;
using kit::MonotonicNs;

}  // namespace engine::zmq_ps
