// As reference_ops.h, for functions of elements and the ops on arrays.
#pragma once

#include <map>
#include <string_view>

#include "engine/options.h"
#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {

using ReferenceFormulas = std::map<std::string_view, Values (*)(Inputs, const Options&)>;

// y = f(x) for each element.
const ReferenceFormulas& ReferenceFunctions();
const ReferenceFormulas& ReferenceArrayOps();

}  // namespace engine::test
