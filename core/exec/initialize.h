// Initial values of parameters.
#pragma once

#include <cstdint>
#include <span>

#include "core/graph/graph.h"

namespace engine::exec {

// Fills `values` (parameter.shape elements): a function of seed, parameter name and position, so
// that every rank and every world size starts from the same model.
void Initialize(const graph::Parameter& parameter, uint64_t seed, std::span<float> values);

}  // namespace engine::exec
