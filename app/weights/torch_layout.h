// Where the elements of a parameter lie in this engine, and where in PyTorch, which has channels
// first: the weight of a convolution is (out, in, rows, columns) there, and a fully connected layer
// behind a flattened image reads it channel by channel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "app/weights/made_ops.h"
#include "core/graph/graph.h"
#include "engine/tensor.h"

namespace engine::weights {

using Order = std::array<int32_t, kMaxDims>;  // a permutation of the first `ndim` dimensions

// The parameter seen as a tensor of shape `view` is PyTorch's with its dimensions in this order:
// dimension i of theirs is dimension order[i] of ours.
struct TorchLayout {
  Shape view;  // of as many elements as the parameter
  Order order;
  Shape torch;  // the shape of the tensor there

  // Whether it is the same here and there.
  bool same() const {
    return torch == view && std::is_sorted(order.begin(), order.begin() + view.ndim);
  }
};

// Dimension i of the result is dimension order[i] of x.
Shape Permuted(const Shape& x, const Order& order);
std::vector<float> Permuted(const float* x, const Shape& shape, const Order& order);

std::vector<float> ToTorch(const TorchLayout& layout, const float* ours);
std::vector<float> FromTorch(const TorchLayout& layout, const float* torch);

// The nodes that read each value.
std::vector<std::vector<graph::NodeId>> FindReaders(const graph::Graph& graph);

// The nodes that flatten an image with its channels last whose elements reach only fully connected
// layers, one weight each: in PyTorch, where channels come first, it is those weights that differ.
std::set<graph::NodeId> FlattensForLinear(const graph::Graph& graph);

// Of each parameter.
std::vector<TorchLayout> TorchLayouts(const graph::Graph& graph, const MadeOps& ops);

}  // namespace engine::weights
