// Inputs and attributes that an op accepts, found by asking its Infer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/conform/ops/op_sample.h"

namespace engine::conform {

// Infer of a new instance.
using TryInfer = std::function<Status(const OpSample& sample)>;

struct SearchResult {
  std::vector<OpSample> found;
  int64_t tried = 0;
  std::string refusal;  // the one heard least often: it knows most of what is missing
  std::string wrong;    // an answer that is neither acceptance nor kConfig with a sentence
};

// Of one op: several ranks and dtypes, with and without samples, and every attribute changed once.
SearchResult FindSamples(const std::string& op, std::span<const OptionSpec> specs,
                         const TryInfer& infer);

}  // namespace engine::conform
