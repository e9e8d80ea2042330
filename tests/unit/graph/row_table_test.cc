// Which parameters a step reads by rows only.

#include <gtest/gtest.h>

#include "tests/unit/graph/graphs.h"

namespace engine::test {
namespace {

constexpr int64_t kRows = 11;

// Tokens (B, T) to rows (B, T, kWidth) of a table, beside a vector that is no table.
class LookUpOp final : public Op {
 public:
  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const TensorSpec& tokens = inputs[0];
    signature->parameter_count = 2;
    signature->parameters[0] = {.name = "table", .shape = {kRows, kWidth}};
    signature->parameters[1] = {.name = "shift", .shape = {kWidth}};
    signature->output_count = 1;
    signature->outputs[0] = {.shape = {tokens.shape[0], tokens.shape[1], kWidth}, .batched = 1};
    signature->differentiable_inputs = 6;
    return {};
  }
  Status Forward(const OpCall&) noexcept override { return {}; }
  Status Backward(const OpCall&) noexcept override { return {}; }
};

// Gives its first input on; the second is read.
class ReadOp final : public Op {
 public:
  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->output_count = 1;
    signature->outputs[0] = inputs[0];
    return {};
  }
  Status Forward(const OpCall&) noexcept override { return {}; }
  Status Backward(const OpCall&) noexcept override { return {}; }
};

class RowTable : public ::testing::Test {
 protected:
  RowTable()
      : builder_(
            [](const std::string& name,
               const std::vector<plugin::OwnedOption>&) -> Result<std::unique_ptr<Op>> {
              if (name == "look_up") return std::unique_ptr<Op>(new LookUpOp);
              return std::unique_ptr<Op>(new ReadOp);
            },
            kSamples) {}

  graph::ValueId Apply(const std::string& op, const std::vector<graph::ValueId>& inputs,
                       const graph::LayerOptions& options = {}) {
    auto value = builder_.Apply("", op, inputs, {}, options);
    EXPECT_TRUE(value.ok()) << value.status().message();
    return value.ok() ? *value : graph::kNone;
  }
  graph::ValueId Table(const std::string& name) {
    const auto value = builder_.ParameterValue(name);
    EXPECT_TRUE(value.ok());
    return value.ok() ? *value : graph::kNone;
  }
  // Parameter::row_elements of all parameters.
  std::vector<int64_t> Rows(graph::ValueId input, graph::ValueId logits) {
    auto graph = builder_.Finish(input, graph::kNone, logits, graph::kNone, {});
    EXPECT_TRUE(graph.ok());
    std::vector<int64_t> rows;
    for (const graph::Parameter& parameter : graph->parameters)
      rows.push_back(parameter.row_elements);
    return rows;
  }

  graph::GraphBuilder builder_;
};

TEST_F(RowTable, IsWhatTheBatchPicksRowsOf) {
  const graph::ValueId tokens = builder_.Input("x", {5}, DType::kInt32);
  const graph::ValueId h = Apply("look_up", {tokens}, {.row_table = "table"});
  EXPECT_EQ(Rows(tokens, Apply("read", {h})), (std::vector<int64_t>{kWidth, 0}));
}

TEST_F(RowTable, IsNoneThatNobodyCallsOne) {
  const graph::ValueId tokens = builder_.Input("x", {5}, DType::kInt32);
  EXPECT_EQ(Rows(tokens, Apply("look_up", {tokens})), (std::vector<int64_t>{0, 0}));
}

TEST_F(RowTable, IsNoVectorAndNoneOfAnotherName) {
  const graph::ValueId tokens = builder_.Input("x", {5}, DType::kInt32);
  const graph::ValueId h = Apply("look_up", {tokens}, {.row_table = "shift"});
  Apply("look_up", {tokens}, {.row_table = "weight"});
  EXPECT_EQ(Rows(tokens, h), (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST_F(RowTable, IsNoneThatAnotherLayerUsesToo) {
  const graph::ValueId tokens = builder_.Input("x", {5}, DType::kInt32);
  const graph::ValueId h = Apply("look_up", {tokens}, {.row_table = "table"});
  EXPECT_EQ(Rows(tokens, Apply("read", {h, Table("look_up1.table")})),
            (std::vector<int64_t>{0, 0}));
}

TEST_F(RowTable, IsNoneWhoseRowsAnotherInputPicks) {
  const graph::ValueId tokens = builder_.Input("x", {5}, DType::kInt32);
  const graph::ValueId others = builder_.Input("y", {5}, DType::kInt32);
  const graph::ValueId changed = Apply("read", {tokens});
  Apply("look_up", {others}, {.row_table = "table"});
  const graph::ValueId h = Apply("look_up", {changed}, {.row_table = "table"});
  EXPECT_EQ(Rows(tokens, h), (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST_F(RowTable, IsNoneWithoutNumbersOfRows) {
  const graph::ValueId x = builder_.Input("x", {5}, DType::kFloat32);
  EXPECT_EQ(Rows(x, Apply("look_up", {x}, {.row_table = "table"})), (std::vector<int64_t>{0, 0}));
}

}  // namespace
}  // namespace engine::test
