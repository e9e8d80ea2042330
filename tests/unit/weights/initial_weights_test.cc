#include "app/weights/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/weights/weight_writing.h"

namespace engine::test {
namespace {

using config::InitOptions;

constexpr ModelInputs kVectors{
    .input_shape = {3}, .target_shape = {}, .classes = 2, .max_samples = 1};
constexpr ModelInputs kImages{
    .input_shape = {1, 4, 6}, .target_shape = {}, .classes = 2, .max_samples = 1};

class InitialWeightsTest : public ::testing::Test {
 protected:
  // What becomes of a model that begins with a file.
  Status Read(const std::string& model, const ModelInputs& inputs,
              const std::vector<ForeignTensor>& tensors, InitOptions options,
              const std::string& format = "pt") {
    options.from = folder_.Write("w.safetensors", Safetensors(tensors, format));
    ENGINE_ASSIGN_OR_RETURN(
        rank_, SingleRank::Make("model { " + model +
                                " }\ndata { synthetic {} } train { steps: 1 global_batch: 1 }\n"
                                "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"));
    weights::MadeOps made(rank_->config().plugins(), rank_->ops());
    ENGINE_ASSIGN_OR_RETURN(graph::Graph graph, rank_->BuildGraph(inputs, made.factory()));
    ENGINE_ASSIGN_OR_RETURN(const auto file, weights::WeightFile::Open(options.from));
    found_ = {};
    const Status status = weights::ReadInitialWeights(
        *file, options, weights::TorchLayouts(graph, made), &graph, &found_);
    values_.clear();
    for (const auto& parameter : graph.parameters) values_[parameter.name] = parameter.values;
    return status;
  }
  std::string Notes() const {
    std::string text;
    for (const std::string& note : found_.notes) text += note + "\n";
    return text;
  }

  TempFolder folder_;
  std::unique_ptr<SingleRank> rank_;
  std::map<std::string, std::vector<float>> values_;  // by parameter; empty: its own
  weights::InitialWeights found_;
};

constexpr char kNet[] =
    "net { layer { name: \"a\" linear { units: 2 } } layer { name: \"head\" linear { units: 2 } } "
    "}";

TEST_F(InitialWeightsTest, TheFirstRuleThatFitsSaysTheName) {
  const InitOptions options{
      .from = "",
      .rules = {{.from = "enc\\.(\\w)\\.weight", .to = "$1.weight", .transpose = true},
                {.from = "enc\\.(\\w)", .to = "$1"},
                {.from = "cls", .to = "head"}},
      .allow_missing = {}};
  ASSERT_THAT(Read(kNet, kVectors,
                   {Counting("enc.a.weight", {3, 2}), Counting("enc.a.bias", {2}),
                    Counting("cls.weight", {2, 2}), Counting("cls.bias", {2}),
                    Counting("enc.b.scale", {5})},
                   options),
              IsOk());
  EXPECT_THAT(values_["a.weight"], ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(values_["a.bias"], ElementsAre(0, 1));
  EXPECT_THAT(values_["head.weight"], ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Notes(), AllOf(HasSubstr("4 parameters"), HasSubstr("nothing uses enc.b.scale")));
}

TEST_F(InitialWeightsTest, ListsAllThatDoNotFitUnlessItIsAllowed) {
  const std::vector<ForeignTensor> tensors = {
      Counting("a.weight", {2, 3}),
      Counting("head.weight", {5, 2}),
      Counting("head.bias", {5}),
      {"a.bias", "I64", {2}, Bytes(std::vector<int64_t>{1, 2})}};
  EXPECT_THAT(
      Read(kNet, kVectors, tensors, {}),
      FailsWith(StatusCode::kConfig, AllOf(HasSubstr("3 parameters"), HasSubstr("w.safetensors"),
                                           HasSubstr("a.bias (2) is (2) of integers there"),
                                           HasSubstr("head.bias (2) is (5) there"),
                                           HasSubstr("head.weight (2, 2) is (5, 2) there"))));
  EXPECT_THAT(Read(kNet, kVectors, tensors, {.from = "", .rules = {}, .allow_missing = {"head.*"}}),
              FailsWith(StatusCode::kConfig, AllOf(HasSubstr("1 parameters"), HasSubstr("a.bias"),
                                                   Not(HasSubstr("head")))));
  ASSERT_THAT(Read(kNet, kVectors, tensors,
                   {.from = "", .rules = {}, .allow_missing = {"head\\..*", "a.bias"}}),
              IsOk());
  EXPECT_EQ(values_["a.weight"].size(), 6u);
  EXPECT_TRUE(values_["head.weight"].empty());
  EXPECT_THAT(Notes(), HasSubstr("head.weight begins with values of its own"));
}

TEST_F(InitialWeightsTest, RefusesWhatCannotBeMeant) {
  EXPECT_THAT(Read(kNet, kVectors, {Counting("a.bias", {2}), Counting("b.bias", {2})},
                   {.from = "", .rules = {{.from = "b", .to = "a"}}, .allow_missing = {".*"}}),
              FailsWith(StatusCode::kConfig, AllOf(HasSubstr("'a.bias'"), HasSubstr("'b.bias'"))));
  EXPECT_THAT(Read(kNet, kVectors, {}, {.from = "", .rules = {}, .allow_missing = {"haed.*"}}),
              FailsWith(StatusCode::kConfig, HasSubstr("'haed.*' fits no parameter")));
  EXPECT_THAT(Read(kNet, kVectors, {Counting(std::string(1 << 20, 'a'), {2})},
                   {.from = "", .rules = {{.from = ".*b", .to = "c"}}, .allow_missing = {".*"}}),
              IsOk())
      << "a name that would overflow the stack";
}

TEST_F(InitialWeightsTest, TakesTheFirstRowsAndColumnsWhereARuleSaysSo) {
  const InitOptions crop{
      .from = "", .rules = {{.from = "a", .to = "a", .crop = true}}, .allow_missing = {"head.*"}};
  ASSERT_THAT(Read(kNet, kVectors, {Counting("a.weight", {4, 5}), Counting("a.bias", {3})}, crop),
              IsOk());
  EXPECT_THAT(values_["a.weight"], ElementsAre(0, 1, 2, 5, 6, 7));
  EXPECT_THAT(values_["a.bias"], ElementsAre(0, 1));
  EXPECT_THAT(Read(kNet, kVectors, {Counting("a.weight", {1, 5}), Counting("a.bias", {3})}, crop),
              FailsWith(StatusCode::kConfig, HasSubstr("a.weight (2, 3) is (1, 5) there")));
}

// Images have their channels first in PyTorch: a convolution's weight, and the columns of a layer that
// reads a flattened image, lie in another order there.
TEST_F(InitialWeightsTest, BringsPyTorchsLayoutsIntoOurs) {
  const std::vector<ForeignTensor> tensors = {Counting("conv1.weight", {2, 1, 3, 3}),
                                              Counting("fc.weight", {2, 12}),
                                              Counting("fc.bias", {2})};
  const InitOptions options{.from = "", .rules = {}, .allow_missing = {"bn1.*"}};
  ASSERT_THAT(Read("cnn { channels: 2 }", kImages, tensors, options), IsOk());
  // (3, 3, 1, 2): rows, columns, inputs, outputs
  std::vector<float> conv, fc;
  for (int tap = 0; tap < 9; ++tap) {
    for (int out = 0; out < 2; ++out) conv.push_back(static_cast<float>(out * 9 + tap));
  }
  // (2, 2, 3, 2): outputs, then rows, columns and channels of the image
  for (int out = 0; out < 2; ++out) {
    for (int position = 0; position < 6; ++position) {
      for (int c = 0; c < 2; ++c) fc.push_back(static_cast<float>(out * 12 + c * 6 + position));
    }
  }
  EXPECT_EQ(values_["conv1.weight"], conv);
  EXPECT_EQ(values_["fc.weight"], fc);
}

// As HuggingFace names them: of the bare model, and of the one with a head.
TEST_F(InitialWeightsTest, TheShippedRulesAreThoseOfGpt2) {
  const auto shipped = ValueOf(config::Config::Load(
      {.text = test::ReadWhole(ENGINE_TEST_SOURCE_DIR "/configs/gpt2_finetune.pbtxt"),
       .origin = "gpt2_finetune.pbtxt",
       .default_plugins = {{.name = "null"}},
       .plugin_folders = {PluginFolder()}}));
  constexpr ModelInputs kTokens{.input_shape = {3},
                                .input_dtype = DType::kInt32,
                                .target_shape = {3},
                                .classes = 5,
                                .max_samples = 1};
  const std::pair<const char*, std::vector<int64_t>> layer[] = {
      {"ln_1.weight", {4}},           {"ln_1.bias", {4}},      {"attn.c_attn.weight", {4, 12}},
      {"attn.c_attn.bias", {12}},     {"ln_2.weight", {4}},    {"attn.c_proj.weight", {4, 4}},
      {"attn.c_proj.bias", {4}},      {"ln_2.bias", {4}},      {"mlp.c_fc.weight", {4, 16}},
      {"mlp.c_proj.weight", {16, 4}}, {"mlp.c_fc.bias", {16}}, {"mlp.c_proj.bias", {4}},
      {"attn.bias", {1, 1, 8, 8}}};
  for (const std::string prefix : {"", "transformer."}) {
    std::vector<ForeignTensor> tensors = {
        Counting(prefix + "wte.weight", {5, 4}), Counting(prefix + "wpe.weight", {8, 4}),
        Counting(prefix + "ln_f.weight", {4}), Counting(prefix + "ln_f.bias", {4})};
    for (const std::string block : {"h.0.", "h.1."}) {
      for (const auto& [name, shape] : layer) {
        tensors.push_back(Counting(prefix + block + name, shape));
      }
    }
    ASSERT_THAT(Read("gpt { layers: 2 width: 4 heads: 2 }", kTokens, tensors, shipped.init()),
                IsOk());
    EXPECT_THAT(values_["embedding.positions"], ::testing::Each(::testing::Lt(12.0f)));
    EXPECT_EQ(values_["block1.mlp.proj.weight"][1], 4);  // the other way round in the file
    EXPECT_THAT(Notes(), AllOf(HasSubstr("28 parameters"), HasSubstr("h.0.attn.bias"),
                               Not(HasSubstr("values of its own"))));
  }
}

TEST_F(InitialWeightsTest, TakesACheckpointAsItIs) {
  const InitOptions options{.from = "", .rules = {}, .allow_missing = {"bn1.*"}};
  ASSERT_THAT(Read("cnn { channels: 2 }", kImages,
                   {Counting("conv1.weight", {3, 3, 1, 2}), Counting("fc.weight", {2, 12}),
                    Counting("fc.bias", {2}), Counting("optimizer/momentum/fc.bias", {2})},
                   options, "engine.checkpoint/1"),
              IsOk());
  for (const char* name : {"conv1.weight", "fc.weight"}) {
    EXPECT_TRUE(std::is_sorted(values_[name].begin(), values_[name].end())) << name;
  }
  EXPECT_THAT(Notes(), Not(HasSubstr("momentum")));
}

}  // namespace
}  // namespace engine::test
