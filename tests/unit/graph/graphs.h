// Graphs of the ops of tests/unit/exec/fake_ops.h.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/graph/program.h"
#include "tests/unit/exec/fake_replica_ops.h"
#include "tests/unit/exec/net.h"

namespace engine::test {

constexpr int64_t kWidth = 3, kSamples = 4;
constexpr size_t kTensorBytes = kWidth * kSamples * sizeof(float);

// A net and its program.
class ProgramTest : public testing::Test {
 protected:
  void Finish(ModelValue logits, const std::vector<std::string>& frozen = {}) {
    graph = net.Finish(logits, frozen);
    program = graph::Differentiate(graph);
  }
  void FinishForInference(ModelValue logits) {
    graph = net.FinishForInference(logits);
    program = graph::ForwardProgram(graph);
  }

  Net net{FakeOps(), kSamples, {kWidth}};
  graph::Graph graph;
  graph::Program program;
};

// x -> op "l0" -> op "l1" -> ...
inline ModelValue Chain(Net& net, const std::string& op, int length) {
  ModelValue h = Net::kX;
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
