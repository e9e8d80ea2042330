// Numbers in memory, whatever their type there.
#pragma once

#include "tools/conform/ops/elements.h"

namespace engine::test {

using conform::FromBFloat16;
using conform::ReadAs;
using conform::ReadElement;
using conform::ToBFloat16;
using conform::WriteAs;
using conform::WriteElement;

}  // namespace engine::test
