#include "tests/conformance/ops/op_cases.h"

#include <cstdlib>
#include <set>

namespace engine::test {
namespace {

TensorSpec Batched(const Shape& shape, DType dtype = DType::kFloat32) {
  return {shape, dtype, 1};
}

void AddLinear(std::vector<OpCase>* cases) {
  const auto linear = [&](const char* name, const Shape& x, const char* units, const char* bias) {
    const OptionValues::Overrides attributes = {{"units", units}, {"bias", bias}};
    cases->push_back({name, "linear", attributes, {Batched(x)}, ReferenceLinear()});
  };
  linear("LinearTiny", Shape{1, 1}, "1", "true");
  linear("LinearOdd", Shape{5, 7}, "33", "true");
  linear("LinearOneUnit", Shape{4, 33}, "1", "false");
  linear("LinearThreeDims", Shape{2, 3, 16}, "7", "true");
  linear("LinearLarge", Shape{400, 48}, "96", "true");
  linear("LinearAligned", Shape{5, 8}, "16", "true");
  const auto mlp = [&](const char* name, const Shape& x, const char* units) {
    cases->push_back({name, "mlp", {{"units", units}}, {Batched(x)}, ReferenceMlp()});
  };
  mlp("MlpTiny", Shape{1, 1}, "1");
  mlp("MlpOdd", Shape{5, 7}, "33");
  mlp("MlpThreeDims", Shape{2, 3, 16}, "7");
  mlp("MlpLarge", Shape{400, 48}, "96");
  mlp("MlpAligned", Shape{5, 8}, "16");
  const auto tied = [&](const char* name, const Shape& x, const Shape& table) {
    cases->push_back({.name = name,
                      .op = "tied_linear",
                      .inputs = {Batched(x), {table, DType::kFloat32, 0}},
                      .reference = ReferenceLinear(),
                      .parameters = 0b10});
  };
  tied("TiedLinearOdd", Shape{2, 7, 5}, Shape{33, 5});
  tied("TiedLinearOneRow", Shape{3, 16}, Shape{1, 16});
}

void AddElementwise(std::vector<OpCase>* cases) {
  const struct {
    const char* name;
    const char* op;
    ReferenceOp reference;
  } functions[] = {{"Relu", "relu", ReferenceRelu()},
                   {"Gelu", "gelu", ReferenceGelu()},
                   {"Tanh", "tanh", ReferenceTanh()}};
  for (const auto& function : functions) {
    const std::string name = function.name;
    cases->push_back({name + "Vector", function.op, {}, {Batched(Shape{33})}, function.reference});
    cases->push_back(
        {name + "Odd", function.op, {}, {Batched(Shape{3, 1, 7})}, function.reference});
    cases->push_back(
        {name + "Large", function.op, {}, {Batched(Shape{160, 257})}, function.reference});
  }
  for (const Shape& shape : {Shape{7}, Shape{3, 5, 7}, Shape{160, 257}}) {
    const std::string size = std::to_string(shape.Count());
    cases->push_back({"Add" + size, "add", {}, {Batched(shape), Batched(shape)}, ReferenceAdd()});
    cases->push_back({.name = "Accumulate" + size,
                      .op = "accumulate",
                      .inputs = {{shape, DType::kFloat32, 0}, {shape, DType::kFloat32, 0}},
                      .reference = ReferenceAdd(),
                      .always_in_place = true});
  }
  cases->push_back(
      {"FlattenThreeDims", "flatten", {}, {Batched(Shape{3, 2, 7})}, ReferenceFlatten()});
  cases->push_back({"FlattenVector", "flatten", {}, {Batched(Shape{5})}, ReferenceFlatten()});
}

void AddLayerNorm(std::vector<OpCase>* cases) {
  const auto norm = [&](const char* name, const Shape& x, const char* epsilon) {
    cases->push_back({name,
                      "layer_norm",
                      {{"epsilon", epsilon}},
                      {Batched(x)},
                      ReferenceLayerNorm(std::strtod(epsilon, nullptr))});
    cases->push_back({std::string("Add").append(name),
                      "add_layer_norm",
                      {{"epsilon", epsilon}},
                      {Batched(x), Batched(x)},
                      ReferenceAddLayerNorm(std::strtod(epsilon, nullptr))});
  };
  norm("LayerNormOdd", Shape{3, 7}, "1e-5");
  norm("LayerNormThreeDims", Shape{2, 5, 33}, "1e-3");
  norm("LayerNormOneColumn", Shape{4, 1}, "0.1");  // not less: it is rounding over epsilon
  norm("LayerNormLarge", Shape{600, 64}, "1e-5");
  // Rows of several widths in registers, and wider ones, in packs or one by one.
  norm("LayerNormAligned", Shape{5, 192}, "1e-5");
  norm("LayerNormOfGpt", Shape{3, 768}, "1e-5");
  norm("LayerNormWide", Shape{3, 1280}, "1e-5");
  norm("LayerNormWideOdd", Shape{3, 1283}, "1e-5");
}

void AddEmbedding(std::vector<OpCase>* cases) {
  const auto embedding = [&](const char* name, const Shape& tokens, int64_t vocabulary,
                             const char* width, const char* positions) {
    cases->push_back({.name = name,
                      .op = "embedding",
                      .attributes = {{"vocabulary", std::to_string(vocabulary)},
                                     {"width", width},
                                     {"positions", positions}},
                      .inputs = {Batched(tokens, DType::kInt32)},
                      .reference = ReferenceEmbedding(),
                      .classes = vocabulary});
  };
  embedding("EmbeddingOdd", Shape{3, 7}, 5, "7", "0");
  embedding("EmbeddingPositions", Shape{4, 7}, 33, "33", "9");
  embedding("EmbeddingOneToken", Shape{2, 1}, 1, "1", "1");
  embedding("EmbeddingLarge", Shape{20, 40}, 50, "64", "40");
  embedding("EmbeddingManyTokens", Shape{3, 33}, 70000, "4", "33");
  embedding("EmbeddingFewTokens", Shape{9, 300}, 2, "3", "0");
}

void AddAttention(std::vector<OpCase>* cases) {
  const auto attention = [&](const char* name, const Shape& qkv, int64_t heads, bool causal) {
    cases->push_back({name,
                      "attention",
                      {{"heads", std::to_string(heads)}, {"causal", causal ? "true" : "false"}},
                      {Batched(qkv)},
                      ReferenceAttention(heads, causal)});
  };
  attention("AttentionTiny", Shape{1, 1, 3}, 1, true);
  attention("AttentionOdd", Shape{2, 7, 3 * 10}, 2, true);
  attention("AttentionOddFull", Shape{2, 7, 3 * 10}, 2, false);
  attention("AttentionManyHeads", Shape{3, 16, 3 * 28}, 7, true);
  attention("AttentionLong", Shape{1, 131, 3 * 33}, 1, true);
  attention("AttentionLongFull", Shape{1, 131, 3 * 33}, 1, false);
  attention("AttentionLarge", Shape{2, 64, 3 * 64}, 2, true);
}

void AddLoss(std::vector<OpCase>* cases) {
  const auto loss = [&](const char* name, const Shape& logits, int64_t smallest) {
    Shape targets = logits;
    targets.dims[--targets.ndim] = 0;
    cases->push_back({.name = name,
                      .op = "softmax_cross_entropy",
                      .inputs = {Batched(logits), Batched(targets, DType::kInt32)},
                      .reference = ReferenceSoftmaxCrossEntropy(),
                      .classes = logits[-1],
                      .smallest = smallest});
  };
  loss("LossOdd", Shape{5, 7}, 0);
  loss("LossIgnored", Shape{9, 3}, -1);
  loss("LossThreeDims", Shape{2, 3, 33}, -1);
  loss("LossOneClass", Shape{4, 1}, 0);
  loss("LossLarge", Shape{500, 70}, -1);
  loss("LossAligned", Shape{3, 2048}, -1);
  loss("LossWide", Shape{3, 120000}, -1);  // more than a block can hold
}

}  // namespace

OpCase InBFloat16(OpCase op_case, bool keeps_float32) {
  if (keeps_float32 && op_case.op == "accumulate") return op_case;
  for (size_t i = keeps_float32 ? 1 : 0; i < op_case.inputs.size(); ++i) {
    DType& dtype = op_case.inputs[i].dtype;
    if (dtype == DType::kFloat32) dtype = DType::kBFloat16;
  }
  return op_case;
}

bool TakesFloat32(const OpCase& op_case) {
  const std::set<std::string> ops = {"linear", "flatten", "to_channels_last", "accumulate"};
  return ops.count(op_case.op) != 0;
}

const std::vector<OpCase>& OpCases() {
  static const std::vector<OpCase> cases = [] {
    std::vector<OpCase> all;
    AddLinear(&all);
    AddElementwise(&all);
    AddLayerNorm(&all);
    AddEmbedding(&all);
    AddAttention(&all);
    AddLoss(&all);
    AddImageOps(&all);
    AddTrainingOps(&all);
    return all;
  }();
  return cases;
}

}  // namespace engine::test
