// Graphs of the ops of tests/unit/exec/fake_ops.h.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/graph/builder.h"
#include "tests/unit/exec/fake_ops.h"

namespace engine::test {

constexpr int64_t kWidth = 3, kSamples = 4;
constexpr size_t kTensorBytes = kWidth * kSamples * sizeof(float);

// Builds layers one after another, each with a name, and ends in the loss.
class Net {
 public:
  Net() : builder_(FakeOps(), kSamples) { input_ = builder_.Input("x", {kWidth}, DType::kFloat32); }

  graph::ValueId input() const { return input_; }
  graph::ValueId Apply(const std::string& name, const std::string& op,
                       const std::vector<graph::ValueId>& inputs,
                       const graph::LayerOptions& options = {}) {
    auto value = builder_.Apply(name, op, inputs, {}, options);
    EXPECT_TRUE(value.ok()) << value.status().message();
    return value.ok() ? *value : graph::kNone;
  }
  graph::Graph Finish(graph::ValueId logits, const std::vector<std::string>& frozen = {}) {
    const graph::ValueId target = builder_.Input("target", {kWidth}, DType::kInt32);
    const graph::ValueId loss = Apply("loss", "loss", {logits, target});
    auto graph = builder_.Finish(input_, target, logits, loss, frozen);
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    return std::move(*graph);
  }
  graph::Graph FinishForInference(graph::ValueId logits) {
    auto graph = builder_.Finish(input_, graph::kNone, logits, graph::kNone, {});
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    return std::move(*graph);
  }

 private:
  graph::GraphBuilder builder_;
  graph::ValueId input_ = graph::kNone;
};

// x -> op "l0" -> op "l1" -> ...
inline graph::ValueId Chain(Net& net, const std::string& op, int length) {
  graph::ValueId h = net.input();
  for (int i = 0; i < length; ++i) {
    h = net.Apply(std::string("l").append(std::to_string(i)), op, {h});
  }
  return h;
}

inline graph::NodeId NodeNamed(const graph::Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name == name) return static_cast<graph::NodeId>(i);
  }
  ADD_FAILURE() << "no layer " << name;
  return 0;
}

}  // namespace engine::test
