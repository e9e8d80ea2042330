// train.init_from: a new run begins with weights of another one, or of another program
// (docs/weights.md).
#pragma once

#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/weights/torch_layout.h"
#include "app/weights/weight_file.h"
#include "core/graph/graph.h"
#include "engine/status.h"

namespace engine::weights {

struct InitialWeights {
  std::vector<std::string> notes;  // what has been found, in sentences for a log
  std::string digest;              // of the values, for ranks to compare
};

// Gives the parameters of `graph` the values of `file` to begin with. A tensor is called as the first
// of options.rules says that fits its name, else as in the file. Where the file is no checkpoint of
// ours, `layouts` say how tensors lie there; a tensor that only fits the other layout is taken as
// that.
//
// kConfig lists the parameters that the file lacks or has in another shape and that
// options.allow_missing does not name; kConfig too when two tensors get one name, or when an entry of
// allow_missing fits no parameter. All parameters that keep their own values, and tensors that nothing
// uses, are notes, which are there after an error too.
Status ReadInitialWeights(const WeightFile& file, const config::InitOptions& options,
                          const std::vector<TorchLayout>& layouts, graph::Graph* graph,
                          InitialWeights* found);

}  // namespace engine::weights
