// The graphs of the models, with the ops that a user gets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "app/model/model_graph.h"
#include "core/graph/memory_plan.h"
#include "kit/op.h"
#include "tests/support/expect_status.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

namespace engine::test {
namespace {

constexpr ModelInputs kVectors{
    .input_shape = {12}, .target_shape = {}, .classes = 5, .max_samples = 4};
constexpr ModelInputs kImages{
    .input_shape = {1, 4, 3}, .target_shape = {}, .classes = 5, .max_samples = 4};
constexpr ModelInputs kTokens{.input_shape = {8},
                              .input_dtype = DType::kInt32,
                              .target_shape = {8},
                              .classes = 17,
                              .max_samples = 4};

// Builds graphs; keeps the plugins of the last one, whose ops live in it.
class ModelsTest : public ::testing::Test {
 protected:
  // `model` is what stands in model { }.
  Result<graph::Graph> Build(const std::string& model, const ModelInputs& inputs) {
    ENGINE_ASSIGN_OR_RETURN(
        rank_, SingleRank::Make("model { " + model +
                                " }\ndata { synthetic {} } train { steps: 1 global_batch: 4 }\n"
                                "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"));
    return rank_->BuildGraph(inputs);
  }

  graph::Graph MustBuild(const std::string& model, const ModelInputs& inputs) {
    return ValueOf(Build(model, inputs));
  }

  std::unique_ptr<SingleRank> rank_;
};

std::string Text(const Shape& shape) {
  std::string text;
  for (int32_t i = 0; i < shape.ndim; ++i) text += (i > 0 ? "x" : "") + std::to_string(shape[i]);
  return text;
}

// "linear1.weight 7x12, linear1.bias 7"
std::string ParametersOf(const graph::Graph& graph) {
  std::string text;
  for (const graph::Parameter& parameter : graph.parameters) {
    text += (text.empty() ? "" : ", ") + parameter.name + " " + Text(parameter.shape);
  }
  return text;
}

// "linear1 relu1 loss", or of the ops "linear relu softmax_cross_entropy".
std::string NodesOf(const graph::Graph& graph,
                    std::string graph::Node::*name = &graph::Node::name) {
  std::string text;
  for (const graph::Node& node : graph.nodes) text += (text.empty() ? "" : " ") + node.*name;
  return text;
}

std::string LogitsOf(const graph::Graph& graph) {
  return Text(graph.values[graph.logits].spec.shape);
}

const graph::Parameter& ParameterNamed(const graph::Graph& graph, const std::string& name) {
  for (const graph::Parameter& parameter : graph.parameters) {
    if (parameter.name == name) return parameter;
  }
  ADD_FAILURE() << "no parameter " << name;
  return graph.parameters[0];
}

TEST_F(ModelsTest, MlpHasTheParametersThatItsDataAndWidthsSay) {
  const char* const expected =
      "linear1.weight 7x12, linear1.bias 7, linear2.weight 6x7, linear2.bias 6, "
      "linear3.weight 5x6, linear3.bias 5";
  const graph::Graph vectors = MustBuild("mlp { hidden: [7, 6] }", kVectors);
  EXPECT_EQ(ParametersOf(vectors), expected);
  EXPECT_EQ(LogitsOf(vectors), "4x5");
  EXPECT_EQ(vectors.nodes[1].op_name, "relu");
  // Images become vectors first.
  const graph::Graph images = MustBuild("mlp { hidden: [7, 6] activation: \"tanh\" }", kImages);
  EXPECT_EQ(ParametersOf(images), expected);
  EXPECT_EQ(images.nodes[0].op_name, "flatten");
  EXPECT_EQ(images.nodes[2].op_name, "tanh");
}

TEST_F(ModelsTest, MlpWithoutHiddenLayersIsLinear) {
  EXPECT_EQ(ParametersOf(MustBuild("mlp {}", kVectors)), "linear1.weight 5x12, linear1.bias 5");
}

constexpr char kGpt[] = "gpt { layers: 1 width: 16 heads: 2 }";
constexpr char kUntiedGpt[] = "gpt { layers: 1 width: 16 heads: 2 tied: false }";

TEST_F(ModelsTest, GptHasTheParametersOfGpt2) {
  const graph::Graph graph = MustBuild(kGpt, kTokens);
  EXPECT_EQ(ParametersOf(graph),
            "embedding.weight 17x16, embedding.positions 8x16, "
            "block0.norm1.weight 16, block0.norm1.bias 16, "
            "block0.attn.qkv.weight 48x16, block0.attn.qkv.bias 48, "
            "block0.attn.proj.weight 16x16, block0.attn.proj.bias 16, "
            "block0.norm2.weight 16, block0.norm2.bias 16, "
            "block0.mlp.fc.weight 64x16, block0.mlp.fc.bias 64, "
            "block0.mlp.proj.weight 16x64, block0.mlp.proj.bias 16, "
            "norm.weight 16, norm.bias 16");
  EXPECT_EQ(LogitsOf(graph), "4x8x17");
}

// The mlp of gpt as one op, as far as a graph knows it.
class OneMlp final : public OpBase {
 public:
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const int64_t width = inputs[0].shape[-1];
    kit::AddOutput(signature, inputs[0].shape, inputs[0].batched);
    kit::AddParameter(signature, Shape{4 * width, width}).name = "fc.weight";
    kit::AddParameter(signature, Shape{4 * width}).name = "fc.bias";
    kit::AddParameter(signature, Shape{width, 4 * width}).name = "proj.weight";
    kit::AddParameter(signature, Shape{width}).name = "proj.bias";
    return {};
  }
  Status Forward(const OpCall&) noexcept override { return {}; }
  Status Backward(const OpCall&) noexcept override { return {}; }
};

TEST_F(ModelsTest, GptTakesAnMlpThatIsOneOpWithTheSameParameters) {
  const graph::Graph separate = MustBuild(kGpt, kTokens);
  const auto build = [&](const std::string& name,
                         const std::vector<plugin::OwnedOption>& attributes) {
    return name == "mlp" ? Result<std::unique_ptr<Op>>(std::make_unique<OneMlp>())
                         : rank_->ops()(name, attributes);
  };
  const auto graph = ValueOf(rank_->BuildGraph(kTokens, build));
  EXPECT_EQ(ParametersOf(graph), ParametersOf(separate));
  EXPECT_EQ(NodesOf(graph, &graph::Node::op_name),
            "embedding layer_norm linear attention linear add layer_norm mlp add layer_norm "
            "tied_linear softmax_cross_entropy");
}

// Of many numbers that a parameter may begin with.
double RootMeanSquare(const graph::Parameter& parameter) {
  constexpr uint64_t kCount = 20000;
  double squares = 0;
  for (uint64_t i = 0; i < kCount; ++i) squares += std::pow(parameter.initial(/*key=*/1, i), 2);
  return std::sqrt(squares / kCount);
}

TEST_F(ModelsTest, GptStartsAsGpt2DoesAndDecaysMatricesOnly) {
  const graph::Graph graph = MustBuild("gpt { layers: 3 width: 16 heads: 2 }", kTokens);
  const double tolerance = 5e-4;
  EXPECT_NEAR(RootMeanSquare(ParameterNamed(graph, "embedding.weight")), 0.02, tolerance);
  EXPECT_NEAR(RootMeanSquare(ParameterNamed(graph, "block2.mlp.fc.weight")), 0.02, tolerance);
  const double residual = 0.02 / std::sqrt(6.0);
  for (const char* name : {"block0.attn.proj.weight", "block2.mlp.proj.weight"}) {
    EXPECT_NEAR(RootMeanSquare(ParameterNamed(graph, name)), residual, tolerance) << name;
  }
  EXPECT_EQ(RootMeanSquare(ParameterNamed(graph, "norm.weight")), 1);
  for (const graph::Parameter& parameter : graph.parameters) {
    EXPECT_EQ(parameter.decay, parameter.shape.ndim == 2) << parameter.name;
    if (parameter.name.ends_with(".bias")) {
      EXPECT_EQ(RootMeanSquare(parameter), 0) << parameter.name;
    }
  }
}

TEST_F(ModelsTest, TheTiedTableGetsOneGradientFromBothUses) {
  const graph::Graph graph = MustBuild(kGpt, kTokens);
  const graph::Program program = graph::Differentiate(graph);
  const graph::ValueId table = ParameterNamed(graph, "embedding.weight").value;
  std::string users;
  for (int32_t k : program.users_of_parameter[0]) {
    const graph::Instruction& instruction = program.instructions[k];
    const bool forward = instruction.kind == graph::InstructionKind::kForward;
    users += (forward ? "forward " : "backward ") + graph.nodes[instruction.node].name + ", ";
  }
  EXPECT_EQ(users, "forward embedding, forward head, backward head, backward embedding, ");
  const auto gradients = std::count_if(
      program.gradients.begin(), program.gradients.end(),
      [&](const graph::Gradient& gradient) { return gradient.of == table && !gradient.partial; });
  EXPECT_EQ(gradients, 1);
}

TEST_F(ModelsTest, AnUntiedHeadHasAMatrixOfItsOwn) {
  const graph::Graph graph = MustBuild(kUntiedGpt, kTokens);
  EXPECT_EQ(ParametersOf(graph), ParametersOf(MustBuild(kGpt, kTokens)) + ", head.weight 17x16");
  const graph::Parameter& head = ParameterNamed(graph, "head.weight");
  EXPECT_NEAR(RootMeanSquare(head), 0.02, 5e-4);
  EXPECT_TRUE(head.decay);
  EXPECT_EQ(LogitsOf(graph), "4x8x17");
}

TEST_F(ModelsTest, OnlyATableThatNothingElseReadsIsReadByRows) {
  const auto row_tables = [this](const std::string& model, const ModelInputs& inputs) {
    const graph::Graph graph = MustBuild(model, inputs);
    const std::vector<int64_t> rows = exec::RowElements(graph);
    std::string tables;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == 0) continue;
      tables += graph.parameters[i].name + " of " + std::to_string(rows[i]) + ";";
    }
    return tables;
  };
  EXPECT_EQ(row_tables(kGpt, kTokens), "");
  EXPECT_EQ(row_tables(kUntiedGpt, kTokens), "embedding.weight of 16;");
  EXPECT_EQ(row_tables("net { layer { name: \"tokens\" embedding { vocabulary: 17 width: 6 "
                       "positions: 8 } } layer { linear { units: 17 } } }",
                       kTokens),
            "tokens.weight of 6;");
  EXPECT_EQ(row_tables("mlp { hidden: 4 }", kVectors), "");
}

TEST_F(ModelsTest, SparsePullNeedsATableThatIsTrained) {
  const auto check = [&](const std::string& model, const ModelInputs& inputs) {
    const graph::Graph graph = MustBuild(model, inputs);
    return exec::CheckHasRowTables(graph);
  };
  EXPECT_TRUE(check("gpt { layers: 1 tied: false }", kTokens).ok());
  EXPECT_THAT(check("gpt { layers: 1 }", kTokens),
              FailsWith(StatusCode::kConfig, AllOf(HasSubstr("train.sparse_pull"),
                                                   HasSubstr("set 'tied' of the model to false"))));
  for (const Status& status :
       {check("mlp {}", kVectors),
        check("gpt { layers: 1 tied: false } frozen: \"embedding\"", kTokens)}) {
    EXPECT_THAT(status, FailsWith(StatusCode::kConfig, AllOf(HasSubstr("train.sparse_pull"),
                                                             HasSubstr("trains no table"))));
  }
}

TEST_F(ModelsTest, MemoryIsSharedInGpt) {
  const graph::Graph graph = MustBuild("gpt { layers: 4 width: 16 heads: 2 }", kTokens);
  const auto sum = [&](const graph::MemoryPlan& plan) {
    size_t bytes = 0;
    for (const graph::Storage& storage : plan.storages) {
      if (storage.kind == graph::StorageKind::kArena && storage.last >= 0)
        bytes += storage.size_bytes;
    }
    return bytes;
  };
  const graph::MemoryPlan training = graph::PlanMemory(graph, graph::Differentiate(graph));
  EXPECT_LT(training.arena_bytes, sum(training) * 3 / 4);
  const graph::MemoryPlan inference = graph::PlanMemory(graph, graph::ForwardProgram(graph));
  EXPECT_LT(inference.arena_bytes, sum(inference) / 4);
}

// With ops that a user gets: dropout, views, in-place ops, batch norm, which is not recomputed.
TEST_F(ModelsTest, RecomputedBlocksTrainToTheSameBitsInLessMemory) {
  const std::string conv =
      "net { layer { name: \"a.conv\" conv2d { channels: 8 kernel: 3 padding: 1 } }"
      " layer { name: \"a.norm\" batch_norm {} } layer { name: \"a.relu\" relu {} }"
      " layer { name: \"b.conv\" conv2d { channels: 8 kernel: 3 padding: 1 } }"
      " layer { name: \"b.gelu\" gelu {} } layer { name: \"b.drop\" dropout { rate: 0.4 } }"
      " layer { name: \"b.flat\" flatten {} } layer { name: \"b.fc\" linear { units: 64 } }"
      " layer { name: \"c.gelu\" gelu {} } layer { name: \"c.fc\" linear { units: 5 } } }";
  const struct {
    std::string model;
    ModelInputs inputs;
    std::string recompute;
  } cases[] = {{conv, kImages, ""},
               {conv + " frozen: \"a.\"", kImages, "b"},
               {"gpt { layers: 3 width: 16 heads: 2 } frozen: \"block0\"", kTokens, "block"},
               {"resnet { blocks: [2, 1] width: 8 stem: CIFAR }",
                {.input_shape = {1, 8, 8}, .target_shape = {}, .classes = 5, .max_samples = 4},
                "layer1."}};
  for (const auto& [model, inputs, recompute] : cases) {
    SCOPED_TRACE(model);
    std::vector<float> trained[2];
    size_t arena_bytes[2] = {};
    for (const int again : {0, 1}) {
      ASSERT_THAT(
          Build(model + (again ? " recompute: \"" + recompute + "\"" : ""), inputs).status(),
          IsOk());
      auto executor = ValueOf(rank_->MakeExecutor(inputs));
      exec::ModelMemory& memory = executor->memory();
      ASSERT_THAT(memory.InitializeParameters(), IsOk());
      std::vector<float> x(static_cast<size_t>(4 * inputs.input_shape.Count()));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 11) / 8 - 0.5f;
      std::vector<int32_t> tokens(x.size());
      for (size_t i = 0; i < x.size(); ++i) tokens[i] = static_cast<int32_t>(i * 3 % 5);
      const bool text = inputs.input_dtype == DType::kInt32;
      for (uint64_t step = 1; step <= 3; ++step) {
        const auto done = StepAndFlush(
            *executor, {.input = text ? static_cast<const void*>(tokens.data()) : x.data(),
                        .target = tokens.data(),
                        .samples = step == 2 ? 3 : 4,
                        .step = step,
                        .learning_rate = 0.1f});
        ASSERT_THAT(done.status(), IsOk());
        trained[again].push_back(done->loss_sum);
      }
      trained[again].insert(trained[again].end(), memory.parameters(),
                            memory.parameters() + memory.layout().total_count);
      arena_bytes[again] = memory.plan().arena_bytes;
    }
    EXPECT_EQ(trained[1], trained[0]);
    EXPECT_LT(arena_bytes[1], arena_bytes[0]);
  }
}

TEST_F(ModelsTest, FrozenPrefixes) {
  const graph::Graph graph = MustBuild(
      "gpt { layers: 2 width: 16 heads: 2 } frozen: \"embedding\" frozen: \"block0.\"", kTokens);
  for (const graph::Parameter& parameter : graph.parameters) {
    const bool frozen =
        parameter.name.starts_with("embedding.") || parameter.name.starts_with("block0.");
    EXPECT_EQ(parameter.trainable, !frozen) << parameter.name;
  }
}

TEST_F(ModelsTest, NetIsAListOfLayersWithResidualBlocks) {
  const graph::Graph graph = MustBuild(
      "net { layer { linear { units: 6 bias: false } }\n"
      "layer { name: \"block\" residual { layer { linear { units: 6 } trainable: false }\n"
      "                                   layer { relu {} priority: 2 } } }\n"
      "layer { name: \"head\" linear { units: 5 } } }",
      kVectors);
  EXPECT_EQ(ParametersOf(graph),
            "linear1.weight 6x12, linear2.weight 6x6, linear2.bias 6, head.weight 5x6, "
            "head.bias 5");
  EXPECT_FALSE(graph.parameters[1].trainable);
  EXPECT_EQ(NodesOf(graph), "linear1 linear2 relu1 block head loss");
  EXPECT_EQ(graph.nodes[2].priority, 2);
}

TEST_F(ModelsTest, AShortcutIsWhatTheInputOfABlockGoesThrough) {
  const graph::Graph graph = MustBuild(
      "net { layer { residual { layer { linear { units: 5 } } layer { relu {} } }\n"
      "              shortcut { layer { name: \"short\" linear { units: 5 bias: false } } } } }",
      kVectors);
  EXPECT_EQ(ParametersOf(graph), "linear1.weight 5x12, linear1.bias 5, short.weight 5x12");
  const graph::Node& add = graph.nodes[graph.nodes.size() - 2];
  ASSERT_EQ(add.op_name, "add");
  EXPECT_EQ(graph.nodes[graph.values[add.inputs[0]].producer].name, "short");
  EXPECT_EQ(graph.nodes[graph.values[add.inputs[1]].producer].name, "relu1");
}

TEST_F(ModelsTest, ResnetHasTheParametersOfTorchvision) {
  const ModelInputs images{
      .input_shape = {3, 32, 32}, .target_shape = {}, .classes = 1000, .max_samples = 2};
  const auto count = [](const graph::Graph& graph) {
    int64_t elements = 0;
    for (const graph::Parameter& parameter : graph.parameters) {
      if (!parameter.buffer) elements += parameter.shape.Count();
    }
    return elements;
  };
  const graph::Graph small = MustBuild("resnet {}", images);
  EXPECT_EQ(count(small), 11689512);  // as torchvision says of resnet18
  EXPECT_EQ(count(MustBuild("resnet { bottleneck: true blocks: [3, 4, 6, 3] }", images)), 25557032);
  const std::string parameters = ParametersOf(small);
  for (const char* parameter :
       {"conv1.weight 7x7x3x64", "bn1.running_var 64", "layer1.1.conv2.weight 3x3x64x64",
        "layer2.0.downsample.0.weight 1x1x64x128", "layer4.0.downsample.1.bias 512",
        "layer4.1.bn2.running_mean 512", "fc.weight 1000x512", "fc.bias 1000"}) {
    EXPECT_THAT(parameters, HasSubstr(parameter));
  }
  const graph::Parameter& conv = ParameterNamed(small, "layer2.0.conv1.weight");
  EXPECT_EQ(Text(conv.shape), "3x3x64x128");
  EXPECT_NEAR(RootMeanSquare(conv), std::sqrt(2.0 / (9 * 128)), 1e-3);
  for (const graph::Parameter& parameter : small.parameters) {
    EXPECT_EQ(parameter.decay, parameter.shape.ndim > 1) << parameter.name;
    EXPECT_EQ(parameter.buffer, parameter.name.find(".running_") != std::string::npos);
  }
}

TEST_F(ModelsTest, BatchNormLooksAtAllRanksUnlessTheModelSaysNot) {
  const auto asks = [](const graph::Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                       [](const graph::Node& node) { return node.signature.uses_replicas != 0; });
  };
  for (const std::string model : {"cnn", "resnet"}) {
    EXPECT_TRUE(asks(MustBuild(model + " {}", kImages))) << model;
    EXPECT_FALSE(asks(MustBuild(model + " { sync_batch_norm: false }", kImages))) << model;
  }
}

TEST_F(ModelsTest, CnnIsConvolutionsThenAPoolAndALinearLayer) {
  const graph::Graph graph = MustBuild("cnn {}", kImages);
  EXPECT_EQ(NodesOf(graph),
            "to_channels_last1 conv1 bn1 relu1 conv2 bn2 relu2 pool flatten fc loss");
  EXPECT_EQ(Text(ParameterNamed(graph, "conv1.weight").shape), "3x3x1x32");
  EXPECT_EQ(Text(ParameterNamed(graph, "conv2.weight").shape), "3x3x32x64");
  EXPECT_EQ(Text(ParameterNamed(graph, "fc.weight").shape), "5x128");
}

TEST_F(ModelsTest, TheGroupWithTheLongestPrefixScalesAParameter) {
  graph::Graph graph = MustBuild("gpt { layers: 2 width: 8 heads: 2 }", kTokens);
  std::vector<train::ParameterGroup> groups = {
      {"", 2, 1}, {"block1.attn", 8, 0.5}, {"block1.", 4, 3}};
  for (graph::Parameter& parameter : graph.parameters) parameter.learning_rate_scale = 0.5f;
  ASSERT_TRUE(model::ScaleParameters(groups, &graph).ok());
  for (const graph::Parameter& parameter : graph.parameters) {
    const bool attention = parameter.name.starts_with("block1.attn");
    const bool block = parameter.name.starts_with("block1.");
    EXPECT_EQ(parameter.learning_rate_scale, attention ? 4 : block ? 2 : 1) << parameter.name;
    EXPECT_EQ(parameter.weight_decay_scale, attention ? 0.5f : block ? 3 : 1) << parameter.name;
    EXPECT_EQ(parameter.DecayScale(), parameter.decay ? parameter.weight_decay_scale : 0);
  }
  groups.push_back({"blok", 1, 1});
  EXPECT_THAT(
      model::ScaleParameters(groups, &graph),
      FailsWith(StatusCode::kConfig, AllOf(HasSubstr("'blok'"), HasSubstr("embedding.weight"))));
}

TEST_F(ModelsTest, LayersCanHaveFactorsOfTheirOwn) {
  const graph::Graph graph = MustBuild(
      "net { layer { linear { units: 6 } learning_rate_scale: 0.25 }\n"
      "  layer { residual { layer { linear { units: 6 } weight_decay_scale: 0 } } }\n"
      "  layer { linear { units: 5 } } }",
      kVectors);
  ASSERT_EQ(graph.parameters.size(), 6u);
  EXPECT_EQ(graph.parameters[0].learning_rate_scale, 0.25f);
  EXPECT_EQ(graph.parameters[1].learning_rate_scale, 0.25f);
  EXPECT_EQ(graph.parameters[2].learning_rate_scale, 1);
  EXPECT_EQ(graph.parameters[2].DecayScale(), 0);
  EXPECT_EQ(graph.parameters[4].DecayScale(), 1);
}

TEST_F(ModelsTest, ALossHasAttributesOfItsOwn) {
  const graph::Graph graph = MustBuild(
      "mlp { criterion { softmax_cross_entropy { label_smoothing: 0.1 } name: \"smooth\" }\n"
      "  class_weights: \"1,2,3,4,5\" }",
      kVectors);
  EXPECT_EQ(NodesOf(graph), "linear1 smooth");
  EXPECT_EQ(ParametersOf(graph), "linear1.weight 5x12, linear1.bias 5, class_weights 5");
  EXPECT_THAT(Build("mlp { criterion { relu {} } }", kVectors),
              FailsWith(StatusCode::kConfig, HasSubstr("relu: got 2 inputs")));
}

TEST_F(ModelsTest, WhatDoesNotFitIsRefused) {
  const struct {
    std::string model;
    ModelInputs inputs;
    std::vector<std::string> said;
  } cases[] = {
      {"gpt { width: 18 }",
       kTokens,
       {"test:1: plugin 'gpt'", "the width 18 must be a multiple of the number of heads, 4"}},
      {"gpt {}", kVectors, {"it needs data { text"}},
      {"cnn {}", kVectors, {"model.cnn reads images"}},
      {"resnet {}", kTokens, {"model.resnet reads images"}},
      {"resnet { blocks: [1, 1, 1, 1, 1, 1, 1, 1, 1] }", kImages, {"9 stages in 'blocks'"}},
      {"mlp { hidden: 3 activation: \"attention\" }", kVectors, {"attention"}},
      {"mlp {} frozen: \"conv\"", kVectors, {"model.frozen", "'conv'", "linear1.weight"}},
      {"gpt {} recompute: \"layer\"", kTokens, {"model.recompute", "'layer'", "'embedding'"}},
      {"net { layer { linear { units: 4 } } }",
       kVectors,
       {"rows of 4", "end with linear { units: 5 }"}},
      {"net { layer { linear { units: 12 } } layer { residual { layer { linear { units: 3 } } } }\n"
       "  layer { linear { units: 5 } } }",
       kVectors,
       {"layer 'add1' (add, fed with (4, 12) and (4, 3))"}},
      {"net { layer { linear { units: 5 }\nshortcut { layer { relu {} } } } }",
       kVectors,
       {"test:2:1", "no 'residual'"}},
      {"net { layer { residual { layer { relu {} } } learning_rate_scale: 2 } }",
       kVectors,
       {"'learning_rate_scale' is for a layer with parameters"}},
  };
  for (const auto& [model, inputs, said] : cases) {
    const Status status = Build(model, inputs).status();
    EXPECT_EQ(status.code(), StatusCode::kConfig) << model;
    for (const std::string& words : said) EXPECT_THAT(status.message(), HasSubstr(words)) << model;
  }
}

}  // namespace
}  // namespace engine::test
