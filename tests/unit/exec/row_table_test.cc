// Which parameters a step reads by rows only.
#include "engine/ext/row_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/exec/served_updates.h"
#include "tests/unit/exec/fake_ops.h"
#include "tests/unit/exec/net.h"

namespace engine::test {
namespace {

constexpr int64_t kRows = 11, kWidth = 3, kSamples = 4;

// Tokens (B, T) to rows (B, T, kWidth) of a table, beside a vector that is no table.
class LookUpOp final : public Op, public RowTable {
 public:
  explicit LookUpOp(int32_t table) : table_(table) {}

  void* Query(std::string_view id) noexcept override {
    return id == kRowTableId && table_ != 0 ? static_cast<RowTable*>(this) : nullptr;
  }
  int32_t table_input() const noexcept override { return table_; }
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

 private:
  const int32_t table_;
};

Result<std::unique_ptr<Op>> MakeOp(const std::string& name,
                                   const std::vector<plugin::OwnedOption>& attributes) {
  if (name.starts_with("look_up")) return std::unique_ptr<Op>(new LookUpOp(name.back() - '0'));
  return FakeOps()(name, attributes);
}

// `op` ends with the number of the input that it calls its table.
ModelValue LookUp(Net& net, ModelValue tokens, const char* op = "look_up1") {
  return net.Apply("", op, {tokens});
}

struct Case {
  const char* what;
  std::function<ModelValue(Net&)> build;
  int64_t expected;  // RowElements of the first parameter; 0 of the other
  DType input = DType::kInt32;
};

TEST(RowTable, IsWhatTheBatchAlonePicksRowsOf) {
  const auto changed = [](Net& net) { return net.Apply("", "add", {Net::kX, Net::kX}); };
  const Case cases[] = {
      {"picked by the batch", [](Net& net) { return LookUp(net, Net::kX); }, kWidth},
      {"called none", [](Net& net) { return LookUp(net, Net::kX, "look_up0"); }, 0},
      {"a vector", [](Net& net) { return LookUp(net, Net::kX, "look_up2"); }, 0},
      {"an input that is not there", [](Net& net) { return LookUp(net, Net::kX, "look_up7"); }, 0},
      {"used twice",
       [](Net& net) {
         return net.Apply("", "add", {LookUp(net, Net::kX), net.Parameter("look_up11.table")});
       },
       0},
      {"picked by another tensor", [](Net& net) { return LookUp(net, Net::kTarget); }, 0},
      {"picked by what an op gives", [&](Net& net) { return LookUp(net, changed(net)); }, 0},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.what);
    Net net(MakeOp, kSamples, {5}, test.input);
    EXPECT_THAT(exec::RowElements(net.Finish(test.build(net))),
                testing::ElementsAre(test.expected, 0));
  }
}

}  // namespace
}  // namespace engine::test
