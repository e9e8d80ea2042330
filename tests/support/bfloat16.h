// The upper half of a float32.
#pragma once

#include "kit/float16.h"

namespace engine::test {

using kit::FromBFloat16;
using kit::ToBFloat16;

}  // namespace engine::test
