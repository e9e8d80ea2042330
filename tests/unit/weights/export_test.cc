// Exports, read back: what stands in the files. Whether a runtime computes the same with them is shown
// by tests/weights/run_onnx.sh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/weights/export_model.h"
#include "app/weights/initial_weights.h"
#include "app/weights/onnx_writer.h"
#include "app/weights/weight_file.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;

constexpr ModelInputs kExportedImages{.input_shape = {1, 4, 6},
                                      .target_shape = {},
                                      .classes = 2,
                                      .max_samples = 3,
                                      .with_loss = false};
constexpr ModelInputs kExportedTokens{.input_shape = {8},
                                      .input_dtype = DType::kInt32,
                                      .target_shape = {8},
                                      .classes = 17,
                                      .max_samples = 1,
                                      .with_loss = false};

class ExportTest : public ::testing::Test {
 protected:
  // Builds a model whose parameters count from 0 on, each.
  void Build(const std::string& model, const ModelInputs& inputs) {
    rank_ = ValueOf(SingleRank::Make(
        "model { " + model + " }\ndata { synthetic {} } train { steps: 1 global_batch: 1 }\n" +
        "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"));
    made_.emplace(rank_->config().plugins(), rank_->ops());
    graph_ = ValueOf(rank_->BuildGraph(inputs, made_->factory()));
    values_.clear();
    for (const graph::Parameter& parameter : graph_.parameters) {
      std::vector<float>& values = values_.emplace_back(parameter.shape.Count());
      std::iota(values.begin(), values.end(), 0.0f);
    }
  }
  weights::TrainedGraph Trained() {
    weights::TrainedGraph model{graph_, *made_, {}};
    for (const auto& values : values_) model.values.push_back(values.data());
    return model;
  }
  onnx::GraphProto Onnx(bool fold = false, bool any_batch = true) {
    const std::string path = folder_ / "net.onnx";
    notes_ = ValueOf(weights::ExportOnnx(
        path, Trained(), {.name = "net", .any_batch = any_batch, .fold_batch_norm = fold}));
    onnx::ModelProto model;
    EXPECT_TRUE(model.ParseFromString(ReadWhole(path)));
    return model.graph();
  }

  TempFolder folder_;
  std::unique_ptr<SingleRank> rank_;
  std::optional<weights::MadeOps> made_;
  graph::Graph graph_;
  std::vector<std::vector<float>> values_;
  std::vector<std::string> notes_;
};

std::vector<std::string> TypesOf(const onnx::GraphProto& graph) {
  std::vector<std::string> types;
  for (const auto& node : graph.node()) types.push_back(node.op_type());
  return types;
}

std::map<std::string, std::vector<int64_t>> ShapesOf(const onnx::GraphProto& graph) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& tensor : graph.initializer()) {
    shapes[tensor.name()] = {tensor.dims().begin(), tensor.dims().end()};
  }
  return shapes;
}

// Every input of a node is there before it.
void ExpectInOrder(const onnx::GraphProto& graph) {
  std::set<std::string> known = {""};
  for (const auto& input : graph.input()) known.insert(input.name());
  for (const auto& tensor : graph.initializer()) known.insert(tensor.name());
  for (const auto& node : graph.node()) {
    for (const auto& input : node.input()) EXPECT_TRUE(known.contains(input)) << node.name();
    for (const auto& output : node.output()) EXPECT_TRUE(known.insert(output).second) << output;
  }
  for (const auto& output : graph.output()) EXPECT_TRUE(known.contains(output.name()));
}

constexpr char kCnn[] = "cnn { channels: [2, 3] }";

TEST_F(ExportTest, AnImageNetKeepsItsChannelsFirst) {
  Build(kCnn, kExportedImages);
  const onnx::GraphProto graph = Onnx();
  ExpectInOrder(graph);
  EXPECT_THAT(TypesOf(graph),
              ElementsAre("Conv", "BatchNormalization", "Relu", "Conv", "BatchNormalization",
                          "Relu", "MaxPool", "Flatten", "Gemm", "Identity"));
  EXPECT_THAT(ShapesOf(graph)["conv2.weight"], ElementsAre(3, 2, 3, 3));
  EXPECT_THAT(ShapesOf(graph)["fc.weight"], ElementsAre(2, 18));
  EXPECT_EQ(graph.input(0).type().tensor_type().shape().dim(0).dim_param(), "batch");
  EXPECT_EQ(graph.output(0).name(), "logits");
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_EQ(
      Onnx(false, /*any_batch=*/false).input(0).type().tensor_type().shape().dim(0).dim_value(), 3);
}

TEST_F(ExportTest, BatchNormIsFoldedWhereAsked) {
  Build(kCnn, kExportedImages);
  const onnx::GraphProto graph = Onnx(/*fold=*/true);
  ExpectInOrder(graph);
  EXPECT_THAT(TypesOf(graph), Not(Contains("BatchNormalization")));
  EXPECT_THAT(ShapesOf(graph)["conv1.bias"], ElementsAre(2));
  EXPECT_FALSE(ShapesOf(graph).contains("bn1.weight"));
}

TEST_F(ExportTest, ALanguageModelHasItsPartsWrittenOut) {
  Build("gpt { layers: 1 width: 8 heads: 2 }", kExportedTokens);
  const onnx::GraphProto graph = Onnx();
  ExpectInOrder(graph);
  EXPECT_THAT(TypesOf(graph),
              IsSupersetOf({"Gather", "LayerNormalization", "Split", "Softmax", "Tanh", "MatMul"}));
  EXPECT_THAT(ShapesOf(graph)["causal_mask_8x8"], ElementsAre(8, 8));
}

TEST_F(ExportTest, AnOpThatOnnxDoesNotHaveIsANodeOfItsPlugin) {
  Build(kCnn, kExportedImages);
  graph_.nodes[1].op_name = "fancy_conv";
  const onnx::GraphProto graph = Onnx();
  ExpectInOrder(graph);
  const auto node = std::ranges::find(graph.node(), "fancy_conv", &onnx::NodeProto::op_type);
  ASSERT_NE(node, graph.node().end());
  EXPECT_EQ(node->domain(), "cpu_ops");
  const auto kernel = std::ranges::find(node->attribute(), "kernel", &onnx::AttributeProto::name);
  ASSERT_NE(kernel, node->attribute().end());
  EXPECT_THAT(kernel->ints(), ElementsAre(3));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("'conv1': ONNX has no op 'fancy_conv'")));
}

// An op that is added to cpu_ops is written, or named here.
TEST_F(ExportTest, EveryOpOfOursIsInTheTable) {
  Build(kCnn, kExportedImages);
  const std::set<std::string> not_for_inference = {
      "accumulate", "softmax_cross_entropy", "mean_squared_error", "mean_absolute_error",
      "huber",      "binary_cross_entropy"};
  size_t written = 0;
  for (const std::string& op : rank_->config().plugins().ops[0].entry.ops) {
    EXPECT_NE(weights::FindOpWriter(op) != nullptr, not_for_inference.contains(op)) << op;
    written += weights::FindOpWriter(op) != nullptr;
  }
  EXPECT_GT(written, 50u);
}

// What was written is what a run begins with again, layouts and all.
TEST_F(ExportTest, WhatIsWrittenIsReadBack) {
  Build(kCnn, kExportedImages);
  const std::string path = folder_ / "weights.safetensors";
  ASSERT_THAT(weights::ExportSafetensors(path, Trained()), IsOk());
  (void)Onnx();
  for (const std::string& file : {path, folder_ / "net.onnx"}) {
    const auto stored = ValueOf(weights::WeightFile::Open(file));
    EXPECT_FALSE(stored->is_checkpoint());
    weights::InitialWeights found;
    graph::Graph& graph = graph_;
    ASSERT_THAT(weights::ReadInitialWeights(*stored, {}, weights::TorchLayouts(graph, *made_),
                                            &graph, &found),
                IsOk());
    for (size_t i = 0; i < values_.size(); ++i) {
      EXPECT_EQ(graph.parameters[i].values, values_[i]) << graph.parameters[i].name;
    }
  }
}

}  // namespace
}  // namespace engine::test
