// The hosts in memory of the conformance kit, by the names that tests use.
#pragma once

#include "tools/conform/memory_host.h"

namespace engine::test {

using namespace conform;

}  // namespace engine::test
