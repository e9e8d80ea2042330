// Functions of elements, products, norms and attention as ONNX.
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "app/weights/onnx_writer.h"

namespace engine::weights {
namespace {

// What works on each element alone leaves images in the layout that they have.
template <typename F>
void Each(const NodeCall& call, F function) {
  const Layout layout = call.onnx.LayoutOf(call.node.inputs[0]);
  call.Out(function(call.In(0, layout)), layout);
}

void Function(const NodeCall& call) {
  Each(call, [&](const std::string& x) { return call.onnx.Add(call.type, {x}); });
}

void Identity(const NodeCall& call) {
  Each(call, [](const std::string& x) { return x; });
}

void FunctionWithAlpha(const NodeCall& call) {
  const bool elu = call.node.op_name == "elu";
  const auto alpha = static_cast<float>(call.attributes.Float(elu ? "alpha" : "slope"));
  Each(call, [&](const std::string& x) {
    return call.onnx.Add(call.type, {x}, {{"alpha", alpha}});
  });
}

void HardSigmoid(const NodeCall& call) {
  Each(call, [&](const std::string& x) {
    return call.onnx.Add("HardSigmoid", {x}, {{"alpha", 1.0f / 6}, {"beta", 0.5f}});
  });
}

void Clip(const NodeCall& call) {
  Each(call, [&](const std::string& x) {
    const auto bound = [&](const char* name) {
      return call.onnx.Scalar(static_cast<float>(call.attributes.Float(name)));
    };
    return call.onnx.Add("Clip", {x, bound("min"), bound("max")});
  });
}

// x f(x): SiLU, and Mish with f = tanh(softplus).
void Gated(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  Each(call, [&](const std::string& x) {
    const bool mish = call.node.op_name == "mish";
    return onnx.Add("Mul", {x, mish ? onnx.Add("Tanh", {onnx.Add("Softplus", {x})})
                                    : onnx.Add("Sigmoid", {x})});
  });
}

// x / 2 (1 + erf(x / sqrt(2))), and its approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715
// x^3))): Hendrycks and Gimpel, arXiv:1606.08415.
void Gelu(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  Each(call, [&](const std::string& x) {
    std::string inner;
    if (call.node.op_name == "gelu_erf") {
      inner = onnx.Add("Erf", {onnx.Add("Mul", {x, onnx.Scalar(std::sqrt(0.5f))})});
    } else {
      const std::string cube = onnx.Add("Mul", {x, onnx.Add("Mul", {x, x})});
      const std::string sum = onnx.Add("Add", {x, onnx.Add("Mul", {cube, onnx.Scalar(0.044715f)})});
      inner = onnx.Add("Tanh", {onnx.Add("Mul", {sum, onnx.Scalar(0.79788456f)})});
    }
    const std::string half = onnx.Add("Mul", {x, onnx.Scalar(0.5f)});
    return onnx.Add("Mul", {half, onnx.Add("Add", {inner, onnx.Scalar(1)})});
  });
}

void Power(const NodeCall& call) {
  const auto exponent = static_cast<float>(call.attributes.Float("exponent"));
  Each(call, [&](const std::string& x) {
    return call.onnx.Add("Pow", {x, call.onnx.Scalar(exponent)});
  });
}

void Scale(const NodeCall& call) {
  const auto factor = static_cast<float>(call.attributes.Float("factor", 1));
  const auto offset = static_cast<float>(call.attributes.Float("offset"));
  Each(call, [&](std::string x) {
    if (factor != 1) x = call.onnx.Add("Mul", {x, call.onnx.Scalar(factor)});
    return offset == 0 ? x : call.onnx.Add("Add", {x, call.onnx.Scalar(offset)});
  });
}

// Tensors of one rank broadcast the same way in either layout; others from their last dimension.
Layout CommonLayout(const NodeCall& call) {
  const int32_t ndim = call.Output().shape.ndim;
  bool image = false;
  for (size_t i = 0; i < call.node.inputs.size(); ++i) {
    const graph::ValueId input = call.node.inputs[i];
    if (call.Input(i).shape.ndim != ndim) return Layout::kOurs;
    image = image || call.onnx.LayoutOf(input) == Layout::kChannelsFirst;
  }
  return image ? Layout::kChannelsFirst : Layout::kOurs;
}

void Binary(const NodeCall& call) {
  const Layout layout = CommonLayout(call);
  call.Out(call.onnx.Add(call.type, {call.In(0, layout), call.In(1, layout)}), layout);
}

void Where(const NodeCall& call) {
  const Layout layout = CommonLayout(call);
  const std::string condition =
      call.onnx.Add("Cast", {call.In(0, layout)}, {{"to", int64_t{onnx::TensorProto::BOOL}}});
  call.Out(call.onnx.Add("Where", {condition, call.In(1, layout), call.In(2, layout)}), layout);
}

void Prelu(const NodeCall& call) {
  call.Out(call.onnx.Add("PRelu", {call.In(0), call.In(1)}));
}

void Softmax(const NodeCall& call) {
  call.Out(call.onnx.Add(call.type, {call.In(0)}, {{"axis", call.attributes.Int("axis", -1)}}));
}

// x (..., K) times a weight: (units, K) as in PyTorch, or (K, units) where a model gives it so.
void Linear(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  const bool as_it_is = !call.MakesParameters() && call.attributes.Int("transposed") != 0;
  const std::string weight = call.TorchIn(1);
  std::vector<std::string> inputs = {call.In(0), weight};
  const bool bias = call.node.inputs.size() > 2;
  if (call.Input().shape.ndim == 2) {
    if (bias) inputs.push_back(call.In(2));
    return call.Out(onnx.Add("Gemm", inputs, {{"transB", int64_t{as_it_is ? 0 : 1}}}));
  }
  if (!as_it_is) inputs[1] = onnx.Transpose(weight, {1, 0});
  const std::string product = onnx.Add("MatMul", inputs);
  call.Out(bias ? onnx.Add("Add", {product, call.In(2)}) : product);
}

// With the last two dimensions exchanged.
std::string Transposed(const NodeCall& call, size_t i) {
  const int32_t ndim = call.Input(i).shape.ndim;
  std::vector<int64_t> order;
  for (int32_t d = 0; d < ndim - 2; ++d) order.push_back(d);
  order.insert(order.end(), {ndim - 1, ndim - 2});
  return call.onnx.Transpose(call.In(i), order);
}

void Matmul(const NodeCall& call) {
  const auto factor = [&](size_t i, const char* transpose) {
    return call.attributes.Int(transpose) != 0 ? Transposed(call, i) : call.In(i);
  };
  const std::string product =
      call.onnx.Add("MatMul", {factor(0, "transpose_a"), factor(1, "transpose_b")});
  const auto scale = static_cast<float>(call.attributes.Float("scale", 1));
  call.Out(scale == 1 ? product : call.onnx.Add("Mul", {product, call.onnx.Scalar(scale)}));
}

void LayerNorm(const NodeCall& call) {
  const bool adds = call.node.op_name == "add_layer_norm";
  std::string x = call.In(0);
  if (adds) {
    x = call.onnx.Add("Add", {x, call.In(1)});
    call.Out(x);
  }
  const size_t first = adds ? 2 : 1;
  const auto epsilon = static_cast<float>(call.attributes.Float("epsilon", 1e-5));
  call.Out(call.onnx.Add("LayerNormalization", {x, call.In(first), call.In(first + 1)},
                         {{"axis", int64_t{-1}}, {"epsilon", epsilon}}),
           Layout::kOurs, adds ? 1 : 0);
}

void RmsNorm(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  const std::string x = call.In(0);
  const std::string mean =
      onnx.Add("ReduceMean", {onnx.Add("Mul", {x, x})}, {{"axes", std::vector<int64_t>{-1}}});
  const auto epsilon = static_cast<float>(call.attributes.Float("epsilon", 1e-5));
  const std::string root = onnx.Add("Sqrt", {onnx.Add("Add", {mean, onnx.Scalar(epsilon)})});
  call.Out(onnx.Add("Mul", {onnx.Add("Div", {x, root}), call.In(1)}));
}

void Embedding(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  std::string y = onnx.Add("Gather", {call.In(1), call.In(0)});
  if (call.node.inputs.size() > 2) {
    const int64_t length = call.Input().shape[-1];
    std::string positions = call.In(2);
    if (call.Input(2).shape[0] > length) {
      positions = onnx.Add("Slice", {positions, onnx.Ints({0}), onnx.Ints({length})});
    }
    y = onnx.Add("Add", {y, positions});
  }
  call.Out(y);
}

// softmax(scale q k^T + mask) v of heads (B, H, T, D), k transposed; a mask that is "" is none.
std::string Attend(const NodeCall& call, const std::string& q, const std::string& k_transposed,
                   const std::string& v, int64_t queries, int64_t keys, float scale,
                   const std::string& mask) {
  OnnxWriter& onnx = call.onnx;
  std::string scores = onnx.Add("MatMul", {onnx.Add("Mul", {q, onnx.Scalar(scale)}), k_transposed});
  if (call.attributes.Int("causal") != 0) {
    std::vector<float> hidden(static_cast<size_t>(queries * keys), 0.0f);
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = i + 1; j < keys; ++j) {
        hidden[i * keys + j] = -std::numeric_limits<float>::infinity();
      }
    }
    const std::string name = "causal_mask_" + std::to_string(queries) + "x" + std::to_string(keys);
    scores = onnx.Add("Add", {scores, onnx.Initialiser(name, {queries, keys}, hidden)});
  }
  if (!mask.empty()) scores = onnx.Add("Add", {scores, mask});
  return onnx.Add("MatMul", {onnx.Add("Softmax", {scores}, {{"axis", int64_t{-1}}}), v});
}

void ScaledDotProductAttention(const NodeCall& call) {
  const Shape &q = call.Input(0).shape, &k = call.Input(1).shape;
  const auto given = static_cast<float>(call.attributes.Float("scale"));
  const float scale = given > 0 ? given : 1 / std::sqrt(static_cast<float>(q[3]));
  call.Out(Attend(call, call.In(0), Transposed(call, 1), call.In(2), q[2], k[2], scale,
                  call.node.inputs.size() > 3 ? call.In(3) : ""));
}

// qkv (B, T, 3C): queries, keys and values side by side, each with its heads side by side.
void Attention(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  const int64_t length = call.Input().shape[1], width = call.Input().shape[2] / 3;
  const int64_t heads = call.attributes.Int("heads");
  const auto parts =
      onnx.Add("Split", 3, {call.In(0), onnx.Ints({width, width, width})}, {{"axis", int64_t{2}}});
  const std::string by_head = onnx.Ints({0, length, heads, width / heads});
  const auto heads_of = [&](size_t part, const std::vector<int64_t>& order) {
    return onnx.Transpose(onnx.Add("Reshape", {parts[part], by_head}), order);
  };
  const std::string y =
      Attend(call, heads_of(0, {0, 2, 1, 3}), heads_of(1, {0, 2, 3, 1}), heads_of(2, {0, 2, 1, 3}),
             length, length, 1 / std::sqrt(static_cast<float>(width / heads)), "");
  call.Out(onnx.Add("Reshape", {onnx.Transpose(y, {0, 2, 1, 3}), onnx.Ints({0, length, width})}));
}

// x cos + x' sin, where x' has the other column of each pair, negative for the first of it.
void RotaryEmbedding(const NodeCall& call) {
  OnnxWriter& onnx = call.onnx;
  const int64_t width = call.Input().shape[-1];
  const bool interleaved = call.attributes.Int("interleaved") != 0;
  std::vector<int64_t> other;
  std::vector<float> sign;
  for (int64_t i = 0; i < width; ++i) {
    const bool first = interleaved ? i % 2 == 0 : i < width / 2;
    const int64_t distance = interleaved ? 1 : width / 2;
    other.push_back(first ? i + distance : i - distance);
    sign.push_back(first ? -1.0f : 1.0f);
  }
  const std::string x = call.In(0);
  const std::string swapped =
      onnx.Add("Mul", {onnx.Add("Gather", {x, onnx.Ints(other)}, {{"axis", int64_t{-1}}}),
                       onnx.Floats({width}, sign)});
  call.Out(
      onnx.Add("Add", {onnx.Add("Mul", {x, call.In(1)}), onnx.Add("Mul", {swapped, call.In(2)})}));
}

constexpr OpWriter kFunctionWriters[] = {
    {"relu", Function, "Relu"},
    {"tanh", Function, "Tanh"},
    {"sigmoid", Function, "Sigmoid"},
    {"hard_swish", Function, "HardSwish"},
    {"exp", Function, "Exp"},
    {"log", Function, "Log"},
    {"sqrt", Function, "Sqrt"},
    {"reciprocal", Function, "Reciprocal"},
    {"abs", Function, "Abs"},
    {"erf", Function, "Erf"},
    {"softplus", Function, "Softplus"},
    {"sin", Function, "Sin"},
    {"cos", Function, "Cos"},
    {"dropout", Identity},
    {"leaky_relu", FunctionWithAlpha, "LeakyRelu"},
    {"elu", FunctionWithAlpha, "Elu"},
    {"hard_sigmoid", HardSigmoid},
    {"clip", Clip},
    {"silu", Gated},
    {"mish", Gated},
    {"gelu", Gelu},
    {"gelu_erf", Gelu},
    {"pow", Power},
    {"scale", Scale},
    {"add", Binary, "Add"},
    {"subtract", Binary, "Sub"},
    {"multiply", Binary, "Mul"},
    {"divide", Binary, "Div"},
    {"maximum", Binary, "Max"},
    {"minimum", Binary, "Min"},
    {"power", Binary, "Pow"},
    {"where", Where},
    {"prelu", Prelu},
    {"softmax", Softmax, "Softmax"},
    {"log_softmax", Softmax, "LogSoftmax"},
    {"linear", Linear},
    {"tied_linear", Linear},
    {"matmul", Matmul},
    {"layer_norm", LayerNorm},
    {"add_layer_norm", LayerNorm},
    {"rms_norm", RmsNorm},
    {"embedding", Embedding},
    {"attention", Attention},
    {"scaled_dot_product_attention", ScaledDotProductAttention},
    {"rotary_embedding", RotaryEmbedding},
};

}  // namespace

std::span<const OpWriter> FunctionWriters() {
  return kFunctionWriters;
}

}  // namespace engine::weights
