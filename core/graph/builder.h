// Builds a Graph by calls, one per layer.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/plugin/plugin_set.h"

namespace engine::graph {

// Makes the op `name` with `attributes` (those not given have their defaults). kConfig names the op
// or attribute that is unknown.
using OpFactory = std::function<Result<std::unique_ptr<Op>>(
    const std::string& name, const std::vector<plugin::OwnedOption>& attributes)>;

struct LayerOptions {
  bool trainable = true;
  int32_t priority = 0;
  float learning_rate_scale = 1;
  float weight_decay_scale = 1;
  // The parameter of the op ("weight") of which each element of the op's first input picks a row,
  // and of which the op reads nothing else; empty: none. An op cannot say so itself.
  std::string row_table = {};
};

class GraphBuilder {
 public:
  // `max_samples` is the largest number of samples of one step on one rank (at least 1).
  GraphBuilder(OpFactory factory, int64_t max_samples);

  // A batched input: (max_samples, sample_shape).
  ValueId Input(const std::string& name, const Shape& sample_shape, DType dtype);

  // Adds the op as layer `name` and makes its parameters; returns its first output. An empty name
  // becomes op and position among the layers of that op: "linear2". kConfig names the layer.
  Result<ValueId> Apply(const std::string& name, const std::string& op,
                        const std::vector<ValueId>& inputs,
                        const std::vector<plugin::OwnedOption>& attributes = {},
                        const LayerOptions& options = {});

  // The same; all of its outputs.
  Result<std::vector<ValueId>> ApplyAll(const std::string& name, const std::string& op,
                                        const std::vector<ValueId>& inputs,
                                        const std::vector<plugin::OwnedOption>& attributes = {},
                                        const LayerOptions& options = {});

  // Whether there is an op of this name for which `attributes` suffice: for those that a library
  // may offer in the place of several others.
  bool Offers(const std::string& op,
              const std::vector<plugin::OwnedOption>& attributes = {}) const {
    return factory_(op, attributes).ok();
  }

  // A parameter that an earlier layer made, to use it again.
  Result<ValueId> ParameterValue(const std::string& name) const;
  // A parameter of no layer. kConfig when there is one of this name.
  Result<ValueId> MakeParameter(const std::string& name, const ParameterSpec& wanted);

  bool Has(ValueId value) const {
    return value >= 0 && value < static_cast<ValueId>(graph_.values.size());
  }
  const TensorSpec& spec(ValueId value) const { return graph_.values[value].spec; }
  const std::string& NameOf(ValueId value) const { return graph_.values[value].name; }
  // Whether the value is output 0 of a loss (OpSignature::is_loss), with the numbers of one.
  bool IsLoss(ValueId value) const;

  // Hands the graph over. Parameters whose name starts with one of `frozen` are not trained; a
  // prefix that fits none is kConfig. What layers called their row table is one
  // (Parameter::row_elements) if its rows are picked by `input` itself and no other layer uses it.
  Result<Graph> Finish(ValueId input, ValueId target, ValueId logits, ValueId loss,
                       const std::vector<std::string>& frozen);

 private:
  std::string UniqueName(const std::string& name, const std::string& op);
  ValueId AddValue(Value value);
  ValueId AddParameter(std::string name, const ParameterSpec& wanted, const LayerOptions& options);
  bool IsRowTable(const Parameter& parameter) const;

  OpFactory factory_;
  Graph graph_;
  std::vector<std::string> op_names_;  // of every layer so far, to count
};

}  // namespace engine::graph
