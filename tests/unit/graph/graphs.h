// Graphs of the ops of tests/unit/exec/fake_ops.h.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/exec/fake_ops.h"
#include "tests/unit/exec/net.h"

namespace engine::test {

constexpr int64_t kWidth = 3, kSamples = 4;
constexpr size_t kTensorBytes = kWidth * kSamples * sizeof(float);

struct VectorNet : Net {
  VectorNet() : Net(FakeOps(), kSamples, {kWidth}) {}
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
