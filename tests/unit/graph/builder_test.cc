#include <gtest/gtest.h>

#include "app/model/graph_builder.h"
#include "tests/support/matchers.h"
#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

TEST(GraphBuilder, LayersWithoutANameAreCountedByOp) {
  Net net(FakeOps(), kSamples, {kWidth});
  ModelValue h = net.Apply("", "scale", {Net::kX});
  h = net.Apply("", "shift", {h});
  h = net.Apply("", "scale", {h});
  const graph::Graph graph = net.FinishForInference(h);
  ASSERT_EQ(graph.parameters.size(), 3u);
  EXPECT_EQ(graph.parameters[0].name, "scale1.weight");
  EXPECT_EQ(graph.parameters[1].name, "shift1.bias");
  EXPECT_EQ(graph.parameters[2].name, "scale2.weight");
  EXPECT_TRUE(graph.parameters[0].decay);
  EXPECT_FALSE(graph.parameters[1].decay);
}

TEST(GraphBuilder, InputsAreBatched) {
  const SampleTensor input{.name = "x", .shape = {2, 3}, .dtype = DType::kInt32};
  const model::ModelRequest request{.inputs = {&input, 1}, .max_samples = 7};
  const model::GraphBuilder builder(request, FakeOps());
  EXPECT_TRUE(builder.Spec(0).shape == (Shape{7, 2, 3}));
  EXPECT_EQ(builder.Spec(0).dtype, DType::kInt32);
  EXPECT_EQ(builder.Spec(0).batched, 1u);
}

// The error of a model of which `op` is the second layer, named `name`.
Status Refusal(const std::string& name, const std::string& op,
               const std::vector<std::string>& frozen = {}) {
  const SampleTensor input{.name = "x", .shape = {2}};
  const model::ModelRequest request{.inputs = {&input, 1}, .with_loss = false, .frozen = frozen};
  model::GraphBuilder builder(request, FakeOps());
  EXPECT_TRUE(kit::Apply(builder, "a", "scale", {0}).ok());
  (void)kit::Apply(builder, name, op, {0});
  (void)builder.Output("x", 0);
  const Status status = builder.Finish().status();
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  return status;
}

TEST(GraphBuilder, RefusesWhatCannotBeBuilt) {
  EXPECT_THAT(Refusal("a", "scale").message(), HasSubstr("two layers are called 'a'"));
  EXPECT_THAT(Refusal("b", "scael").message(), AllOf(HasSubstr("layer 'b'"), HasSubstr("scael")));
  EXPECT_THAT(Refusal("b", "scale", {"a.", "z"}).message(),
              AllOf(HasSubstr("'z'"), HasSubstr("'a.weight'")));
}

}  // namespace
}  // namespace engine::test
