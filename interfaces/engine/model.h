// What graph is built: ops of any op plugin, called by name, from the tensors of a sample to the
// loss.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/dataset.h"
#include "engine/op.h"
#include "engine/options.h"
#include "engine/status.h"

namespace engine {

// A tensor of the graph that is being built: a tensor of the samples, an output of an op, or a
// parameter.
using ModelValue = int32_t;

// What a model is built for.
struct ModelData {
  uint64_t struct_size = sizeof(ModelData);
  // Tensors of a sample. Input i is the value i of the graph, target i the value inputs.size() + i.
  Array<const SampleTensor> inputs = {}, targets = {};
  // with_loss = 0: a graph for inference ends at its outputs, may not use the targets' values, and
  // has no parameters but those of the graph with a loss.
  uint32_t with_loss = 1;
};
ENGINE_LAYOUT(ModelData, struct_size, inputs, targets, with_loss);

// Builds one graph. Errors stay: what comes after the first one is returned it again, so a model
// may return the first it sees. [setup]
ENGINE_INTERFACE(ModelBuilder, Interface, "engine.model_builder.draft/1", data, Spec, Offers, Apply,
                 Parameter, Output, Loss);
class ModelBuilderBase : public Implements<ModelBuilder> {
 public:
  // What the graph is for; its texts and lists live as long as the builder.
  virtual ModelData data() const noexcept = 0;

  // What is known of a value; batched tensors have the extent of a full batch in front. `value`
  // must be one that this builder gave, or of the data.
  virtual TensorSpec Spec(ModelValue value) const noexcept = 0;

  // 1 if there is an op of this name for which the attributes suffice: for one that may take the
  // place of several others.
  virtual uint32_t Offers(std::string_view op, Array<const OptionValue> attributes) noexcept = 0;

  // Adds an op, fed with `inputs`, and makes its parameters; the first outputs.size() of what it
  // gives are written to `outputs`. kConfig names the layer.
  virtual Status Apply(const LayerSpec& layer, std::span<const ModelValue> inputs,
                       std::span<ModelValue> outputs) noexcept = 0;

  // With `wanted` a parameter of the model itself, as a value that any op can take as an input,
  // else the one that a layer before made ("embedding.weight"), to use it again. kConfig when there
  // is one of this name already, or none.
  virtual Status Parameter(std::string_view name, const ParameterSpec* wanted,
                           ModelValue* out) noexcept = 0;

  // A value that whoever runs the model may read after the forward pass, at least one; the first is
  // what a classifier or a model of text predicts with.
  virtual Status Output(std::string_view name, ModelValue value) noexcept = 0;

  // What is minimised: output 0 of an op that is a loss (OpSignature::is_loss), made by Apply. Of
  // several calls the sum, by the op "add". Not in a graph for inference.
  virtual Status Loss(ModelValue value) noexcept = 0;

 protected:
  ~ModelBuilderBase() = default;
};

ENGINE_INTERFACE(Model, Object, "engine.model.draft/1", Build);
class ModelBase : public Implements<Model> {
 public:
  // The same graph for the same data and ops, on every rank. Build returns the first error that a
  // call of the builder gave. [setup]
  virtual Status Build(ModelBuilder& builder) const noexcept = 0;
};

}  // namespace engine
