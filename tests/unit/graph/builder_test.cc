#include "core/graph/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(GraphBuilder, LayersWithoutANameAreCountedByOp) {
  Net net;
  graph::ValueId h = net.Apply("", "scale", {net.input()});
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
  graph::GraphBuilder builder(FakeOps(), 7);
  const graph::ValueId x = builder.Input("x", {2, 3}, DType::kInt32);
  EXPECT_TRUE(builder.spec(x).shape == (Shape{7, 2, 3}));
  EXPECT_EQ(builder.spec(x).dtype, DType::kInt32);
  EXPECT_EQ(builder.spec(x).batched, 1u);
}

TEST(GraphBuilder, RefusesWhatCannotBeBuilt) {
  graph::GraphBuilder builder(FakeOps(), 1);
  const graph::ValueId x = builder.Input("x", {2}, DType::kFloat32);
  ASSERT_TRUE(builder.Apply("a", "scale", {x}).ok());
  const Status twice = builder.Apply("a", "scale", {x}).status();
  EXPECT_EQ(twice.code(), StatusCode::kConfig);
  EXPECT_THAT(twice.message(), HasSubstr("two layers are called 'a'"));
  const Status unknown = builder.Apply("b", "scael", {x}).status();
  EXPECT_EQ(unknown.code(), StatusCode::kConfig);
  EXPECT_THAT(unknown.message(), AllOf(HasSubstr("layer 'b'"), HasSubstr("scael")));
  EXPECT_EQ(builder.ParameterValue("a.bias").status().code(), StatusCode::kConfig);
  const Status frozen = builder.Finish(x, graph::kNone, x, graph::kNone, {"a.", "z"}).status();
  EXPECT_EQ(frozen.code(), StatusCode::kConfig);
  EXPECT_THAT(frozen.message(), AllOf(HasSubstr("'z'"), HasSubstr("'a.weight'")));
}

}  // namespace
}  // namespace engine::test
