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
  const auto add = [&](const char* name, const char* op, const std::vector<Shape>& shapes,
                       const ReferenceOp& reference) {
    for (const Shape& shape : shapes) {
      cases->push_back({NameOf(name, shape), op, {}, {Batched(shape)}, reference});
    }
  };
  const std::vector<Shape> shapes = {Shape{33}, Shape{3, 1, 7}, Shape{160, 257}};
  add("Relu", "relu", shapes, ReferenceRelu());
  add("Gelu", "gelu", shapes, ReferenceGelu());
  add("Tanh", "tanh", shapes, ReferenceTanh());
  add("Flatten", "flatten", {Shape{3, 2, 7}, Shape{5}}, ReferenceFlatten());
  for (const Shape& shape : {Shape{7}, Shape{3, 5, 7}, Shape{160, 257}}) {
    cases->push_back(
        {NameOf("Add", shape), "add", {}, {Batched(shape), Batched(shape)}, ReferenceAdd()});
    cases->push_back({.name = NameOf("Accumulate", shape),
                      .op = "accumulate",
                      .inputs = {{shape, DType::kFloat32, 0}, {shape, DType::kFloat32, 0}},
                      .reference = ReferenceAdd(),
                      .always_in_place = true});
  }
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

// With few values per channel, epsilon is large: else what is measured is rounding over a deviation
// that may be as small.
void AddBatchNorm(const Shape& x, const char* epsilon, std::vector<OpCase>* cases) {
  for (const bool sync : {true, false}) {
    cases->push_back({.name = NameOf(sync ? "BatchNorm" : "BatchNormAlone", x),
                      .op = "batch_norm",
                      .attributes = {{"epsilon", epsilon}, {"sync", sync ? "true" : "false"}},
                      .inputs = {{x, DType::kFloat32, 1}},
                      .reference = ReferenceBatchNorm(std::strtod(epsilon, nullptr)),
                      .mixes_samples = !sync});
  }
}

void AddDropout(const Shape& x, const char* rate, uint32_t batched, std::vector<OpCase>* cases) {
  RandomKey key;
  if (batched == 0) key.first_sample = 0;  // all ranks have the same
  std::string name = NameOf("Dropout", x);
  name.append("At").append(std::to_string(static_cast<int>(std::strtod(rate, nullptr) * 1000)));
  if (batched == 0) name.append("Unbatched");
  cases->push_back({.name = name,
                    .op = "dropout",
                    .attributes = {{"rate", rate}},
                    .inputs = {{x, DType::kFloat32, batched}},
                    .reference = ReferenceDropout(std::strtod(rate, nullptr), key)});
}

void AddTrainingOps(std::vector<OpCase>* cases) {
  AddBatchNorm(Shape{7, 1}, "0.1", cases);
  AddBatchNorm(Shape{9, 5}, "0.1", cases);
  AddBatchNorm(Shape{3, 2, 33}, "0.1", cases);
  AddBatchNorm(Shape{5, 3, 4, 20}, "1e-3", cases);
  AddBatchNorm(Shape{4, 7, 5, 16}, "1e-3", cases);
  AddBatchNorm(Shape{16, 9, 11, 35}, "1e-5", cases);  // several threads, several blocks
  AddDropout(Shape{33}, "0.5", 1, cases);
  AddDropout(Shape{5, 7}, "0.1", 1, cases);
  AddDropout(Shape{5, 7}, "0.75", 0, cases);
  AddDropout(Shape{6, 3, 5, 4}, "0", 1, cases);
  AddDropout(Shape{4, 3, 3}, "0.999", 1, cases);
  AddDropout(Shape{160, 257}, "0.2", 1, cases);
}

}  // namespace

std::string NameOf(const std::string& op, const Shape& x) {
  std::string name = op;
  for (int32_t i = 0; i < x.ndim; ++i) name.append("x").append(std::to_string(x[i]));
  return name;
}

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
