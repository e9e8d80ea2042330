// Requests and members in words, for errors.
#pragma once

#include <cstdarg>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "kit/describe.h"
#include "wire.h"

namespace engine::zmq_ps {

using kit::Text;

// "all-reduce of 300000 float32 (sum, root 0, sequence 17)", "barrier (sequence 3)"
Text Describe(const Header& request) noexcept;
Text Describe(const Transfer& transfer, Operation operation) noexcept;

// "rank 2", "ranks 0, 2 and 3"
std::string List(const char* what, const std::vector<uint32_t>& numbers);

// kInvalidArgument that names `worker`.
__attribute__((format(printf, 2, 3))) Status Blame(uint32_t worker, const char* format,
                                                   ...) noexcept;

}  // namespace engine::zmq_ps
