// What graph is built: ops of any op plugin, called by name, from the tensors of a sample to the loss.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/dataset.h"
#include "engine/object.h"
#include "engine/op.h"
#include "engine/options.h"
#include "engine/status.h"

namespace engine {

// A tensor of the graph that is being built: a tensor of the samples, an output of an op, or a
// parameter.
using ModelValue = int32_t;

// One op of the graph with its parameters.
struct LayerSpec {
  std::string_view op;    // of any chosen op plugin
  std::string_view name;  // parameters are called "<name>.weight"; empty: op and number, "linear2"
  std::span<const OptionValue> attributes;  // those that are not given have their defaults
  uint32_t trainable = 1;                   // 0: its parameters keep their initial values
  int32_t priority = 0;                     // of its backward op, larger first
  float learning_rate_scale = 1;            // of its parameters, beside those of the run
  float weight_decay_scale = 1;

  // Of layers from a configuration (Layers below) alone: where `op` is empty the layer is a block,
  // whose `residual` layers are added to its input as it is, or as its `shortcut` layers leave it.
  const LayerSpec* residual = nullptr;
  const LayerSpec* shortcut = nullptr;
  uint32_t residual_count = 0, shortcut_count = 0;
};

// What a model is built for.
struct ModelData {
  // Tensors of a sample. Input i is the value i of the graph, target i the value inputs.size() + i.
  std::span<const SampleTensor> inputs, targets;
  // 0: a graph for inference, which ends at its outputs; it may not use the targets' values, and has
  // no parameters but those of the graph with a loss.
  uint32_t with_loss = 1;
};

// Builds one graph. Errors stay: what comes after the first one is returned it again, so a model may
// return the first it sees. [setup]
class ModelBuilder {
 public:
  virtual ModelData data() const noexcept = 0;

  // What is known of a value; batched tensors have the extent of a full batch in front. `value` must
  // be one that this builder gave, or of the data.
  virtual TensorSpec Spec(ModelValue value) const noexcept = 0;

  // Whether there is an op of this name for which the attributes suffice: for one that may take the
  // place of several others.
  virtual bool Offers(std::string_view op, std::span<const OptionValue> attributes) noexcept = 0;

  // Adds an op, fed with `inputs`, and makes its parameters; the first outputs.size() of what it
  // gives are written to `outputs`. kConfig names the layer.
  virtual Status Apply(const LayerSpec& layer, std::span<const ModelValue> inputs,
                       std::span<ModelValue> outputs) noexcept = 0;

  // With `wanted` a parameter of the model itself, as a value that any op can take as an input, else
  // the one that a layer before made ("embedding.weight"), to use it again. kConfig when there is
  // one of this name already, or none.
  virtual Status Parameter(std::string_view name, const ParameterSpec* wanted,
                           ModelValue* out) noexcept = 0;

  // A value that whoever runs the model may read after the forward pass, at least one; the first is
  // what a classifier or a model of text predicts with.
  virtual Status Output(std::string_view name, ModelValue value) noexcept = 0;

  // What is minimised: output 0 of an op that is a loss (OpSignature::is_loss), made by Apply. Of
  // several calls the sum, by the op "add". Not in a graph for inference.
  virtual Status Loss(ModelValue value) noexcept = 0;

 protected:
  ~ModelBuilder() = default;
};

class Model : public Object {
 public:
  // The same graph for the same data and ops, on every rank; returns the first error that a call of
  // the builder gave. [setup]
  virtual Status Build(ModelBuilder& builder) const noexcept = 0;
};

// The value of an option of type kLayers, for the create function. Valid while the model lives.
inline std::span<const LayerSpec> Layers(const Options& options, std::string_view name) noexcept {
  const OptionValue& value = options.Find(name, OptionType::kLayers);
  return {value.layers, value.layer_count};
}

}  // namespace engine
