// Graphs of a few layers, built as a model plugin builds them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "app/model/graph_builder.h"
#include "kit/model.h"

namespace engine::test {

// With one input and one target: by default a number for each element of the input.
class Net {
 public:
  Net(plugin::OpFactory ops, int64_t max_samples, const SampleTensor& input,
      const SampleTensor& target)
      : input_(input),
        target_(target),
        request_{.inputs = {&input_, 1}, .targets = {&target_, 1}, .max_samples = max_samples},
        builder_(request_, std::move(ops)) {}
  Net(plugin::OpFactory ops, int64_t max_samples, const Shape& input, DType dtype = DType::kFloat32)
      : Net(std::move(ops), max_samples, {.name = "x", .shape = input, .dtype = dtype},
            {.name = "target", .shape = input, .dtype = DType::kInt32}) {}
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  static constexpr ModelValue kX = 0, kTarget = 1;

  ModelValue Apply(const std::string& name, const std::string& op,
                   const std::vector<ModelValue>& inputs,
                   const std::vector<OptionValue>& attributes = {}, const LayerSpec& layer = {}) {
    const auto value = kit::Apply(builder_, name, op, inputs, attributes, layer);
    EXPECT_TRUE(value.ok()) << value.status().message();
    return value.ok() ? *value : kX;
  }
  // That a layer before has made.
  ModelValue Parameter(const std::string& name) {
    ModelValue value = kX;
    const Status status = builder_.Parameter(name, nullptr, &value);
    EXPECT_TRUE(status.ok()) << status.message();
    return value;
  }

  // ModelRequest::recompute, before the end.
  void Recompute(std::vector<std::string> prefixes) { request_.recompute = std::move(prefixes); }

  // Ends in the op `loss`.
  graph::Graph Finish(ModelValue logits, const std::vector<std::string>& frozen = {},
                      const char* loss = "loss") {
    EXPECT_TRUE(builder_.Output("logits", logits).ok());
    EXPECT_TRUE(builder_.Loss(Apply("loss", loss, {logits, kTarget})).ok());
    request_.frozen = frozen;
    return Finished();
  }
  graph::Graph FinishForInference(ModelValue logits) {
    EXPECT_TRUE(builder_.Output("logits", logits).ok());
    request_.with_loss = false;
    return Finished();
  }

 private:
  graph::Graph Finished() {
    auto graph = builder_.Finish();
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    return graph.ok() ? std::move(*graph) : graph::Graph();
  }

  const SampleTensor input_, target_;
  model::ModelRequest request_;
  model::GraphBuilder builder_;  // borrows the above
};

}  // namespace engine::test
