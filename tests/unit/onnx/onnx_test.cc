// The graphs that files become, and what they compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/unit/onnx/onnx_file.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

namespace engine::test {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;
constexpr int64_t kSamples = 2;

// The numbers 0, 1, 2, ... times `step`.
std::vector<float> Counting(size_t count, float step = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) * step;
  return values;
}

class OnnxTest : public ::testing::Test {
 protected:
  Result<graph::Graph> Build(const ModelInputs& inputs, const std::string& more = "") {
    ENGINE_RETURN_IF_ERROR(MakeRank(more));
    return rank_->BuildGraph(inputs);
  }
  Status Fails(const Shape& sample, const std::string& more = "") {
    return Build({.input_shape = sample, .target_shape = {}, .classes = 5, .max_samples = kSamples},
                 more)
        .status();
  }
  // The ops, as "linear relu".
  std::string OpsOf(const ModelInputs& inputs) {
    const graph::Graph graph = ValueOf(Build(inputs));
    std::string text;
    for (const graph::Node& node : graph.nodes) text += (text.empty() ? "" : " ") + node.op_name;
    return text;
  }

  // What a graph for inference gives for two samples of these numbers; ops_ are its ops.
  std::vector<float> Run(const Shape& sample, const std::vector<float>& input) {
    Start({.input_shape = sample, .target_shape = {}, .classes = 5, .max_samples = kSamples});
    return Forward(input.data());
  }
  std::vector<float> Forward(const void* input) {
    EXPECT_THAT(model_->SetBatch(input, nullptr, kSamples), IsOk());
    EXPECT_THAT(model_->RunForward(), IsOk());
    return Floats(*model_, model_->logits());
  }
  void Start(const ModelInputs& inputs) {
    if (const Status made = MakeRank(""); !made.ok()) throw std::runtime_error(made.message());
    model_ = ValueOf(rank_->MakeModel(inputs));
    EXPECT_THAT(model_->InitializeParameters(), IsOk());
    ops_.clear();
    for (const graph::Node& node : model_->graph().nodes)
      ops_ += (ops_.empty() ? "" : " ") + node.op_name;
  }

  Status MakeRank(const std::string& more) {
    model_.reset();
    ENGINE_ASSIGN_OR_RETURN(
        rank_, SingleRank::Make("model { onnx { path: \"" + file_.Write() + "\" " + more +
                                " } }\ndata { synthetic {} } train { steps: 1 global_batch: 2 }\n"
                                "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"));
    return {};
  }

  OnnxFile file_;
  std::unique_ptr<SingleRank> rank_;
  std::unique_ptr<exec::ModelMemory> model_;
  std::string ops_;
};

auto IsNear(const std::vector<float>& expected) {
  return Pointwise(FloatNear(1e-5f), expected);
}

TEST_F(OnnxTest, AGemmIsALinearLayerWithTheNamesOfTheFile) {
  file_.Input("x", {0, 3}).Output("y");
  file_.Floats("fc.weight", {5, 3}, Counting(15)).Floats("fc.bias", {5}, {1});
  file_.Node("Gemm", "y", {"x", "fc.weight", "fc.bias"}).Int("transB", 1);
  EXPECT_THAT(Run({3}, {1, 0, 0, 0, 1, 1}), IsNear({1, 4, 7, 10, 13, 4, 10, 16, 22, 28}));
  EXPECT_EQ(ops_, "linear");
  const auto& parameters = model_->graph().parameters;
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].name, "fc.weight");
  EXPECT_EQ(parameters[0].shape, (Shape{5, 3}));
  EXPECT_EQ(parameters[1].name, "fc.bias");
}

TEST_F(OnnxTest, AMatrixThatTheFileTransposesIsTakenAsItIs) {
  file_.Input("x", {0, 4, 3}).Output("y").Floats("fc.weight", {5, 3}, Counting(15));
  file_.Node("Transpose", "t", {"fc.weight"}).List("perm", {1, 0});
  file_.Node("MatMul", "m", {"x", "t"}).Floats("fc.bias", {5}, {1});
  file_.Node("Add", "y", {"fc.bias", "m"});
  EXPECT_EQ(OpsOf({.input_shape = {4, 3}, .target_shape = {4}, .classes = 5, .max_samples = 2}),
            "linear softmax_cross_entropy");
}

TEST_F(OnnxTest, ATiedMatrixIsOneParameter) {
  file_.Input("x", {0, 3}, ::onnx::TensorProto::INT64).Output("y");
  file_.Floats("wte.weight", {5, 2}, {1, 0, 0, 1});
  file_.Node("Gather", "e", {"wte.weight", "x"})
      .Node("Transpose", "t", {"wte.weight"})
      .List("perm", {1, 0});
  file_.Node("MatMul", "y", {"e", "t"});
  Start({.input_shape = {3},
         .input_dtype = DType::kInt32,
         .target_shape = {3},
         .classes = 5,
         .max_samples = 2});
  EXPECT_EQ(ops_, "embedding linear");
  EXPECT_EQ(model_->graph().parameters.size(), 1u);
  const int32_t tokens[] = {0, 1, 2, 3, 4, 0};
  const std::vector<float> y = Forward(tokens);
  EXPECT_THAT(std::vector<float>(y.begin(), y.begin() + 5), ElementsAre(1, 0, 1, 0, 1));
}

TEST_F(OnnxTest, PlanesAreChannelsLastInside) {
  file_.Input("x", {0, 2, 2, 2}).Output("y").Floats("c.weight", {3, 2, 1, 1}, {1, 0, 0, 1, 1, 1});
  file_.Node("Conv", "c", {"x", "c.weight"}).Node("Relu", "r", {"c"}).Node("Flatten", "y", {"r"});
  // Channel 0 is 0 to 3, channel 1 is 4 to 7: the flattened planes are in PyTorch's order.
  const std::vector<float> y = Run({2, 2, 2}, Counting(16));
  ASSERT_EQ(y.size(), 24u);
  EXPECT_THAT(std::vector<float>(y.begin(), y.begin() + 12),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 4, 6, 8, 10));
  EXPECT_EQ(ops_, "to_channels_last conv2d relu to_channels_first reshape");
}

TEST_F(OnnxTest, NoOpMovesWhatIsOnlyCalledOtherwise) {
  file_.Input("x", {0, 4, 6}).Output("y");
  file_.Ints("split", {0, 0, 2, 3}).Ints("back", {0, 0, -1});
  file_.Node("Reshape", "s", {"x", "split"})
      .Node("Transpose", "t", {"s"})
      .List("perm", {1, 0, 2, 3});
  file_.Node("Relu", "r", {"t"}).Node("Transpose", "u", {"r"}).List("perm", {1, 0, 2, 3});
  file_.Node("Reshape", "y", {"u", "back"});
  EXPECT_THAT(Run({4, 6}, Counting(48)), IsNear(Counting(48)));
  EXPECT_EQ(ops_, "relu");
}

TEST_F(OnnxTest, ShapesOfTheBatchAreFolded) {
  file_.Input("x", {0, 2, 3}).Output("y").Ints("0", {0}).Ints("-1", {-1});
  file_.Node("Shape", "s", {"x"}).Node("Gather", "b", {"s", "0"});
  file_.Node("Concat", "shape", {"b", "-1"}).Int("axis", 0).Node("Reshape", "f", {"x", "shape"});
  file_.Node("Relu", "y", {"f"});
  EXPECT_THAT(Run({2, 3}, Counting(12)), IsNear(Counting(12)));
}

TEST_F(OnnxTest, ABatchThatTheFileFixesIsThatOfTheRank) {
  file_.Input("x", {7, 2, 3})
      .Output("y")
      .Ints("shape", {7, 6})
      .Node("Reshape", "f", {"x", "shape"});
  file_.Node("Relu", "y", {"f"});
  EXPECT_THAT(Run({2, 3}, Counting(12)), IsNear(Counting(12)));
}

TEST_F(OnnxTest, ATokenThatAllSamplesShareStandsInFront) {
  file_.Input("x", {0, 2, 3})
      .Output("y")
      .Floats("token", {1, 1, 3}, {9, 8, 7})
      .Ints("0", {0})
      .Ints("more", {1, 3});
  file_.Node("Shape", "s", {"x"}).Node("Gather", "b", {"s", "0"});
  file_.Node("Concat", "shape", {"b", "more"})
      .Int("axis", 0)
      .Node("Expand", "e", {"token", "shape"});
  file_.Node("Concat", "y", {"e", "x"}).Int("axis", 1);
  EXPECT_THAT(Run({2, 3}, Counting(12)),
              ElementsAre(9, 8, 7, 0, 1, 2, 3, 4, 5, 9, 8, 7, 6, 7, 8, 9, 10, 11));
}

// softmax(q k^T / 2 + mask) v with the nodes that PyTorch writes.
void AddAttention(OnnxFile* file, bool masked) {
  file->Input("x", {0, 2, 3, 4}).Output("y");
  file->Node("Transpose", "k", {"x"}).List("perm", {0, 1, 3, 2}).Node("MatMul", "qk", {"x", "k"});
  file->Node("Constant", "half", {})
      .Float("value_float", 0.5f)
      .Node("Mul", "scores", {"qk", "half"});
  if (masked) {
    file->Floats("causal_mask", {1, 1, 3, 3}, {0, -INFINITY, -INFINITY, 0, 0, -INFINITY, 0, 0, 0});
    file->Node("Add", "m", {"scores", "causal_mask"});
  }
  file->Node("Softmax", "p", {masked ? "m" : "scores"})
      .Int("axis", -1)
      .Node("MatMul", "y", {"p", "x"});
}

TEST_F(OnnxTest, AttentionIsOneOp) {
  AddAttention(&file_, false);
  Run({2, 3, 4}, Counting(48, 0.1f));
  EXPECT_EQ(ops_, "scaled_dot_product_attention");
}

TEST_F(OnnxTest, ALowerTriangularMaskIsCausal) {
  AddAttention(&file_, true);
  const std::vector<float> x = Counting(48, 0.1f), y = Run({2, 3, 4}, x);
  EXPECT_EQ(ops_, "scaled_dot_product_attention");
  // The first position sees itself alone; the third all, with the softmax of its scores.
  EXPECT_NEAR(y[0], x[0], 1e-6);
  double sum = 0, weighted = 0;
  for (int key = 0; key < 3; ++key) {
    double score = 0;
    for (int i = 0; i < 4; ++i) score += x[8 + i] * x[4 * key + i];
    sum += std::exp(score / 2);
    weighted += std::exp(score / 2) * x[4 * key];
  }
  EXPECT_NEAR(y[8], weighted / sum, 1e-5);
}

TEST_F(OnnxTest, NormsAndActivationsOfManyNodesAreOneOp) {
  file_.Input("x", {0, 4}).Output("y").Floats("n.weight", {4}, {1}).Floats("n.bias", {4}, {0});
  file_.Node("Constant", "two", {})
      .Float("value_float", 2)
      .Node("Constant", "e", {})
      .Float("value_float", 1e-5f);
  file_.Node("ReduceMean", "mean", {"x"}).List("axes", {-1}).Node("Sub", "d", {"x", "mean"});
  file_.Node("Pow", "d2", {"d", "two"}).Node("ReduceMean", "v", {"d2"}).List("axes", {-1});
  file_.Node("Add", "ve", {"v", "e"}).Node("Sqrt", "r", {"ve"}).Node("Div", "q", {"d", "r"});
  file_.Node("Mul", "w", {"q", "n.weight"}).Node("Add", "n", {"w", "n.bias"});
  file_.Node("Constant", "root", {}).Float("value_float", std::sqrt(2.0f));
  file_.Node("Constant", "one", {})
      .Float("value_float", 1)
      .Node("Constant", "half", {})
      .Float("value_float", 0.5f);
  file_.Node("Div", "g1", {"n", "root"}).Node("Erf", "g2", {"g1"}).Node("Add", "g3", {"g2", "one"});
  file_.Node("Mul", "g4", {"n", "g3"}).Node("Mul", "g", {"g4", "half"});
  file_.Node("Sigmoid", "s", {"g"}).Node("Mul", "y", {"g", "s"});
  Run({4}, Counting(8));
  EXPECT_EQ(ops_, "layer_norm gelu_erf silu");
}

TEST_F(OnnxTest, AWeightOfTheRmsIsARmsNorm) {
  file_.Input("x", {0, 4}).Output("y").Floats("n.weight", {4}, {2});
  file_.Node("Constant", "two", {})
      .Float("value_float", 2)
      .Node("Constant", "e", {})
      .Float("value_float", 1e-6f);
  file_.Node("Pow", "x2", {"x", "two"}).Node("ReduceMean", "m", {"x2"}).List("axes", {-1});
  file_.Node("Add", "me", {"m", "e"}).Node("Sqrt", "r", {"me"}).Node("Reciprocal", "i", {"r"});
  file_.Node("Mul", "xi", {"x", "i"}).Node("Mul", "y", {"xi", "n.weight"});
  const std::vector<float> y = Run({4}, {3, 3, 3, 3, 0, 0, 0, 4});
  EXPECT_EQ(ops_, "rms_norm");
  EXPECT_THAT(y, IsNear({2, 2, 2, 2, 0, 0, 0, 4}));
}

TEST_F(OnnxTest, BuffersAreNotTrained) {
  file_.Input("x", {0, 3}).Output("y").Floats("rope.cos", {3}, {2}).Floats("gain", {3}, {3});
  file_.Node("Mul", "a", {"x", "rope.cos"}).Node("Mul", "y", {"a", "gain"});
  EXPECT_THAT(Run({3}, {1, 1, 1, 2, 2, 2}), ElementsAre(6, 6, 6, 12, 12, 12));
  int trained = 0;
  for (const graph::Parameter& parameter : model_->graph().parameters) {
    if (!parameter.constant()) ++trained;
  }
  EXPECT_EQ(trained, 1);
}

TEST_F(OnnxTest, ABatchNormHasTheNamesOfItsModule) {
  file_.Input("x", {0, 2, 3, 3}).Output("y");
  for (const char* const part : {"weight", "bias", "running_mean", "running_var"}) {
    file_.Floats(std::string("bn.") + part, {2}, {part[0] == 'b' ? 5.0f : 1.0f});
  }
  file_
      .Node("BatchNormalization", "b",
            {"x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}, {"b", "m", "v"})
      .Int("training_mode", 1);
  file_.Node("GlobalAveragePool", "p", {"b"}).Node("Flatten", "y", {"p"});
  const std::vector<float> y = Run({2, 3, 3}, std::vector<float>(36, 1.0f));
  EXPECT_EQ(ops_, "to_channels_last batch_norm global_avg_pool");
  EXPECT_THAT(y, IsNear({5, 5, 5, 5}));
  EXPECT_EQ(model_->graph().parameters[2].name, "bn.running_mean");
}

// Greater, Where, Celu, ReduceL2 and Einsum with ops for other things.
TEST_F(OnnxTest, WhatHasNoOpOfItsOwnIsMadeOfOthers) {
  file_.Input("x", {0, 2, 2}).Output("y").Floats("w", {2, 3}, {1, 0, 0, 0, 1, 1});
  file_.Node("Constant", "one", {}).Float("value_float", 1);
  file_.Node("Greater", "g", {"x", "one"}).Node("Celu", "c", {"x"}).Float("alpha", 2);
  file_.Node("Where", "s", {"g", "x", "c"});
  file_.Node("Einsum", "e", {"s", "w"}).Text("equation", "btd, de -> bet");
  file_.Node("ReduceL2", "y", {"e"}).List("axes", {2}).Int("keepdims", 0);
  const float below = 2 * (std::exp(-0.5f) - 1);
  EXPECT_THAT(Run({2, 2}, {3, 0, 4, -1, 1, 0, 0, 2}), IsNear({5, -below, -below, 1, 2, 2}));
}

TEST_F(OnnxTest, ALogarithmOfASumOfLargePowersIsFinite) {
  file_.Input("x", {0, 2}).Output("y").Node("ReduceLogSumExp", "y", {"x"}).List("axes", {1});
  EXPECT_THAT(Run({2}, {500, 500, -500, 0}), IsNear({500 + std::log(2.0f), 0}));
}

TEST_F(OnnxTest, ASlopeForAllIsOneParameter) {
  file_.Input("x", {0, 3}).Output("y").Floats("act.weight", {1}, {0.5f});
  file_.Node("PRelu", "y", {"x", "act.weight"});
  EXPECT_THAT(Run({3}, {-2, 1, -4, 2, -6, 3}), ElementsAre(-1, 1, -2, 2, -3, 3));
}

// Two contributions to the gradient of one value, of which one arrives in another shape.
TEST_F(OnnxTest, TheGradientOfAViewIsAddedElementByElement) {
  file_.Input("x", {0, 4}).Output("y").Floats("bias", {4}, {0});
  file_.Ints("square", {0, 2, 2}).Ints("row", {0, 4});
  file_.Node("Add", "b", {"x", "bias"}).Node("Reshape", "v", {"b", "square"});
  file_.Node("Relu", "r1", {"v"}).Node("Relu", "r2", {"b"}).Node("Reshape", "f", {"r1", "row"});
  file_.Node("Add", "y", {"f", "r2"});
  ASSERT_THAT(MakeRank(""), IsOk());
  const auto executor = ValueOf(rank_->MakeExecutor(
      {.input_shape = {4}, .target_shape = {}, .classes = 4, .max_samples = kSamples}));
  ASSERT_THAT(executor->memory().InitializeParameters(), IsOk());
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  const int32_t targets[kSamples] = {0, 0};
  ASSERT_THAT(StepAndFlush(*executor, {.input = ones, .target = targets, .samples = kSamples}),
              IsOk());
  // p - target = (1/4 - 1, 1/4, 1/4, 1/4), twice for each of the samples.
  const float third = GradientOf(executor->memory(), 0)[1];
  EXPECT_GT(third, 0);
  EXPECT_THAT(GradientOf(executor->memory(), 0), IsNear({-3 * third, third, third, third}));
}

// ---- What is refused

TEST_F(OnnxTest, AnOpThatIsNotThereIsNamedWithItsNode) {
  file_.Input("x", {0, 3}).Output("y").Node("GridSample", "layer4/warp", {"x"}, {"y"});
  EXPECT_THAT(Fails({3}),
              FailsWith(StatusCode::kPlugin, AllOf(HasSubstr("node 'layer4/warp' (GridSample)"),
                                                   HasSubstr("\"onnx_grid_sample\""))));
}

TEST_F(OnnxTest, ANodeOfAnotherDomainIsNotWhatItsNameSays) {
  file_.Input("x", {0, 3}).Output("y").Floats("rope.cos", {3}, {2});
  file_.Node("Neg", "n", {"rope.cos"}).Node("Mul", "y", {"x", "n"});
  file_.graph().mutable_node(0)->set_domain("com.acme");
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kPlugin, HasSubstr("\"com_acme_neg\"")));
}

TEST_F(OnnxTest, AttributesThatNoOpHasAreNotPassedOver) {
  file_.Input("x", {0, 1, 2, 2}).Output("y").Floats("mask", {4}, {1, 1, 2, 2});
  file_.Node("Resize", "y", {"x", "", "mask"}).Text("nearest_mode", "ceil");
  EXPECT_THAT(Fails({1, 2, 2}), FailsWith(StatusCode::kPlugin, HasSubstr("(ceil)")));
  file_.Int("antialias", 1);
  EXPECT_THAT(Fails({1, 2, 2}), FailsWith(StatusCode::kPlugin, HasSubstr("antialias=1")));
}

TEST_F(OnnxTest, SamplesOfAnotherShapeAreRefusedWithBoth) {
  file_.Input("x", {0, 3, 8, 8}).Output("y").Node("Relu", "y", {"x"});
  EXPECT_THAT(Fails({1, 28, 28}), FailsWith(StatusCode::kConfig, AllOf(HasSubstr("(3, 8, 8)"),
                                                                       HasSubstr("(1, 28, 28)"))));
}

TEST_F(OnnxTest, TokensAreNoImages) {
  file_.Input("x", {0, 3}, ::onnx::TensorProto::INT64).Output("y").Node("Identity", "y", {"x"});
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kConfig, HasSubstr("of integers")));
}

TEST_F(OnnxTest, ACycleIsBadData) {
  file_.Input("x", {0, 3})
      .Output("y")
      .Node("Add", "a", {"x", "b"})
      .Node("Relu", "b", {"a"})
      .Node("Relu", "y", {"b"});
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kBadData,
                                    AllOf(HasSubstr("node 'a' (Add)"), HasSubstr("reads 'b'"))));
  file_.graph().mutable_node(0)->set_input(1, "x");
  file_.graph().mutable_node(1)->set_output(0, "x");
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kBadData, HasSubstr("gives 'x', which is there")));
}

TEST_F(OnnxTest, AnOrderThatNamesADimensionTwiceIsRefused) {
  file_.Input("x", {0, 3}).Output("y").Floats("a", {2, 3}, {1, 2, 3, 4, 5, 6});
  file_.Node("Transpose", "t", {"a"}).List("perm", {0, 0});
  file_.Node("Mul", "y", {"x", "t"});
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kBadData, HasSubstr("node 't' (Transpose)")));
}

TEST_F(OnnxTest, ANumberInThePlaceOfATensorIsRefused) {
  file_.Input("x", {0, 3}).Output("y").Floats("s", {}, {1}).Floats("w", {3, 5}, {1});
  file_.Node("Expand", "e", {"s"}).Node("MatMul", "y", {"e", "w"});
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kBadData, HasSubstr("node 'y' (MatMul)")));
}

TEST_F(OnnxTest, PaddingOfAWrongLengthIsRefused) {
  file_.Input("x", {0, 1, 4, 4}).Output("y");
  file_.Node("MaxPool", "y", {"x"}).List("kernel_shape", {2, 2}).List("pads", {0, 1});
  EXPECT_THAT(Fails({1, 4, 4}), FailsWith(StatusCode::kBadData, HasSubstr("node 'y' (MaxPool)")));
}

TEST_F(OnnxTest, AnUnknownOpsetIsRefused) {
  file_.Input("x", {0, 3}).Output("y").Node("Relu", "y", {"x"});
  file_.model().mutable_opset_import(0)->set_version(9);
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kUnsupported, HasSubstr("opset 9")));
}

TEST_F(OnnxTest, AReductionOverTheBatchIsRefused) {
  file_.Input("x", {0, 3}).Output("y").Node("ReduceMean", "y", {"x"}).List("axes", {0});
  EXPECT_THAT(Fails({3}), FailsWith(StatusCode::kPlugin, HasSubstr("node 'y' (ReduceMean)")));
}

TEST_F(OnnxTest, ExternalDataIsReadAndMissed) {
  file_.Input("x", {0, 5}).Output("y").Floats("gain", {5}, {1}).Node("Mul", "y", {"x", "gain"});
  auto* const tensor = file_.graph().mutable_initializer(0);
  tensor->clear_float_data();
  tensor->set_data_location(::onnx::TensorProto::EXTERNAL);
  const auto add = [&](const char* key, const char* value) {
    auto* const entry = tensor->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  add("location", "weights.bin");
  add("offset", "4");
  EXPECT_THAT(Fails({5}), FailsWith(StatusCode::kMissingInput, HasSubstr("weights.bin")));
  const float values[] = {0, 2, 3, 4, 5, 6};
  file_.folder().Write("weights.bin", {reinterpret_cast<const char*>(values), sizeof values});
  EXPECT_THAT(Run({5}, std::vector<float>(10, 1)), ElementsAre(2, 3, 4, 5, 6, 2, 3, 4, 5, 6));
  file_.folder().Write("weights.bin", {reinterpret_cast<const char*>(values), 20});
  EXPECT_THAT(Fails({5}), FailsWith(StatusCode::kBadData, HasSubstr("'gain'")));
  tensor->mutable_external_data(0)->set_value("../weights.bin");
  EXPECT_THAT(Fails({5}), FailsWith(StatusCode::kBadData, HasSubstr("outside")));
}

// Every beginning of a file is refused or is a model; none ends the process.
TEST_F(OnnxTest, ATruncatedFileIsRefused) {
  file_.Input("x", {0, 3})
      .Output("y")
      .Floats("gain", {3}, {1, 2, 3})
      .Node("Mul", "y", {"x", "gain"});
  const std::string whole = file_.Bytes();
  const std::string path = file_.Write();
  int refused = 0;
  for (size_t size = 0; size < whole.size(); size += 3) {
    file_.folder().Write("model.onnx", whole.substr(0, size));
    const auto rank =
        SingleRank::Make("model { onnx { path: \"" + path +
                         "\" } }\ndata { synthetic {} } "
                         "train { steps: 1 global_batch: 2 }\n"
                         "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n");
    const auto graph = (*rank)->BuildGraph(
        {.input_shape = {3}, .target_shape = {}, .classes = 3, .max_samples = 2});
    EXPECT_FALSE(graph.ok()) << size;
    if (graph.status().code() == StatusCode::kBadData) ++refused;
  }
  EXPECT_GT(refused, 10);
  EXPECT_THAT(Fails({3}), Not(IsOk()));  // five classes, three numbers
}

}  // namespace
}  // namespace engine::test
