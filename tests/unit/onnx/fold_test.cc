// Constants computed by the formulas of ONNX's operator pages.
#include "fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/unit/onnx/onnx_file.h"

namespace engine::onnx {
namespace {

using Type = Tensor::Type;

Tensor IntsOf(Dims values) {
  Tensor tensor{Type::kInt, {static_cast<int64_t>(values.size())}, {}};
  for (const int64_t value : values) tensor.values.push_back(static_cast<double>(value));
  return tensor;
}

Tensor Counting(Dims dims) {
  Tensor tensor{Type::kFloat, dims, {}};
  for (int64_t i = 0; i < Count(dims); ++i) tensor.values.push_back(static_cast<double>(i));
  return tensor;
}

class FoldTest : public ::testing::Test {
 protected:
  // The last node of the file, with these inputs.
  Result<std::vector<Tensor>> Run(const std::vector<Tensor>& inputs) {
    std::vector<const Tensor*> borrowed;
    for (const Tensor& input : inputs) borrowed.push_back(&input);
    const auto& nodes = file_.graph().node();
    return Fold(Node(nodes[nodes.size() - 1], 17), borrowed);
  }
  Tensor MustRun(const std::vector<Tensor>& inputs) { return ValueOf(Run(inputs)).at(0); }

  test::OnnxFile file_;
};

TEST_F(FoldTest, IntegersAreDividedAsIntegers) {
  file_.Node("Div", "y", {"a", "b"});
  EXPECT_THAT(MustRun({IntsOf({7, -7}), IntsOf({2})}).values, ElementsAre(3, -3));
}

TEST_F(FoldTest, WhatBroadcastsIsCompared) {
  file_.Node("Equal", "y", {"a", "b"});
  const Tensor y = MustRun({Counting({2, 2}), Tensor{Type::kFloat, {2, 1}, {1, 2}}});
  EXPECT_EQ(y.type, Type::kBool);
  EXPECT_THAT(y.values, ElementsAre(0, 1, 1, 0));
}

TEST_F(FoldTest, SlicesGoBackwardsToo) {
  file_.Node("Slice", "y", {"x", "b", "e", "a", "s"});
  const Tensor y =
      MustRun({Counting({2, 4}), IntsOf({-1}), IntsOf({INT64_MIN}), IntsOf({1}), IntsOf({-2})});
  EXPECT_EQ(y.dims, (Dims{2, 2}));
  EXPECT_THAT(y.values, ElementsAre(3, 1, 7, 5));
}

TEST_F(FoldTest, GatherPicksAlongItsAxis) {
  file_.Node("Gather", "y", {"x", "i"}).Int("axis", 1);
  const Tensor y = MustRun({Counting({2, 3}), Tensor{Type::kInt, {1, 2}, {2, -3}}});
  EXPECT_EQ(y.dims, (Dims{2, 1, 2}));
  EXPECT_THAT(y.values, ElementsAre(2, 0, 5, 3));
}

TEST_F(FoldTest, ConcatenatesAlongItsAxis) {
  file_.Node("Concat", "y", {"a", "b"}).Int("axis", -1);
  EXPECT_THAT(MustRun({Counting({2, 1}), Counting({2, 2})}).values, ElementsAre(0, 0, 1, 1, 2, 3));
}

TEST_F(FoldTest, TransposesExpandsAndTiles) {
  file_.Node("Transpose", "y", {"x"}).List("perm", {1, 0});
  EXPECT_THAT(MustRun({Counting({2, 3})}).values, ElementsAre(0, 3, 1, 4, 2, 5));
  file_.Node("Expand", "y", {"x", "s"});
  EXPECT_THAT(MustRun({Counting({2, 1}), IntsOf({1, 2})}).values, ElementsAre(0, 0, 1, 1));
  file_.Node("Tile", "y", {"x", "r"});
  EXPECT_THAT(MustRun({Counting({1, 2}), IntsOf({2, 2})}).values,
              ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
}

TEST_F(FoldTest, TrianglesRangesAndSums) {
  file_.Node("Trilu", "y", {"x"}).Int("upper", 0);
  EXPECT_THAT(MustRun({Tensor{Type::kFloat, {2, 2}, {1, 1, 1, 1}}}).values,
              ElementsAre(1, 0, 1, 1));
  file_.Node("Range", "y", {"a", "b", "s"});
  EXPECT_THAT(MustRun({IntsOf({1}), IntsOf({6}), IntsOf({2})}).values, ElementsAre(1, 3, 5));
  file_.Node("ReduceSum", "y", {"x", "axes"}).Int("keepdims", 0);
  EXPECT_THAT(MustRun({Counting({2, 3}), IntsOf({1})}).values, ElementsAre(3, 12));
}

TEST_F(FoldTest, UpdatesAreScattered) {
  file_.Node("ScatterND", "y", {"x", "i", "u"});
  const Tensor y = MustRun(
      {Counting({4}), Tensor{Type::kInt, {2, 1}, {3, 0}}, Tensor{Type::kFloat, {2}, {9, 8}}});
  EXPECT_THAT(y.values, ElementsAre(8, 1, 2, 9));
}

TEST_F(FoldTest, SplitsInPartsThatAreGiven) {
  file_.Node("Split", "", {"x", "s"}, {"a", "b"});
  const auto parts = ValueOf(Run({Counting({3}), IntsOf({1, 2})}));
  EXPECT_THAT(parts[0].values, ElementsAre(0));
  EXPECT_THAT(parts[1].values, ElementsAre(1, 2));
}

TEST_F(FoldTest, ReshapesByZeroAndMinusOne) {
  file_.Node("Reshape", "y", {"x", "s"});
  EXPECT_EQ(MustRun({Counting({2, 3, 2}), IntsOf({0, -1})}).dims, (Dims{2, 6}));
  EXPECT_THAT(Run({Counting({6}), IntsOf({4, -1})}),
              FailsWith(StatusCode::kBadData, HasSubstr("node 'y' (Reshape): 6 elements")));
}

TEST_F(FoldTest, AReductionOverNoAxesMayBeNone) {
  file_.Node("ReduceSum", "y", {"x", "axes"}).Int("noop_with_empty_axes", 1);
  EXPECT_THAT(MustRun({Counting({2, 2}), IntsOf({})}).values, ElementsAre(0, 1, 2, 3));
}

// Extents, positions and types that only a damaged file has.
TEST_F(FoldTest, ListsOfADamagedFileAreRefused) {
  const auto is_bad = FailsWith(StatusCode::kBadData, HasSubstr("node 'y'"));
  file_.Node("Slice", "y", {"x", "b", "e", "a"});
  EXPECT_THAT(Run({Counting({4}), IntsOf({0, 1}), IntsOf({2, 4}), IntsOf({0, -1})}), is_bad);
  file_.Node("Slice", "y", {"x", "b", "e", "a", "s"});
  EXPECT_THAT(
      MustRun({Counting({3}), IntsOf({0}), IntsOf({3}), IntsOf({0}), IntsOf({INT64_MAX})}).values,
      ElementsAre(0));
  file_.Node("Reshape", "y", {"x", "s"});
  EXPECT_THAT(Run({Counting({6}), IntsOf({INT64_MAX, INT64_MAX, -1})}), is_bad);
  EXPECT_THAT(Run({Counting({6}), IntsOf({-2, -3})}), is_bad);
  file_.Node("Tile", "y", {"x", "r"});
  EXPECT_THAT(Run({Counting({6}), IntsOf({INT64_MAX})}), is_bad);
  file_.Node("Split", "", {"x", "s"}, {"a", "b"});
  EXPECT_THAT(Run({Counting({6}), IntsOf({INT64_MAX, INT64_MAX})}),
              FailsWith(StatusCode::kBadData, HasSubstr("parts")));
  file_.Node("Gather", "y", {"x", "i"});
  EXPECT_THAT(Run({Counting({6}), Tensor{Type::kInt, {}, {NAN}}}), is_bad);
}

TEST_F(FoldTest, ATensorIsNotLargerThanItsBytes) {
  ::onnx::TensorProto tensor;
  tensor.set_name("t");
  tensor.set_data_type(::onnx::TensorProto::FLOAT16);
  tensor.add_dims(1);
  tensor.add_int32_data(0x3c00);
  EXPECT_THAT(ValueOf(ReadTensor(tensor, "f")).values, ElementsAre(1));
  tensor.set_dims(0, int64_t{1} << 40);
  EXPECT_THAT(ReadTensor(tensor, "f"), FailsWith(StatusCode::kBadData, HasSubstr("2 bytes")));
  tensor.add_dims(int64_t{1} << 40);
  EXPECT_THAT(ReadTensor(tensor, "f"), FailsWith(StatusCode::kBadData, HasSubstr("shape")));
}

TEST_F(FoldTest, WhatDoesNotFitIsRefused) {
  file_.Node("Add", "y", {"a", "b"});
  EXPECT_THAT(Run({Counting({2}), Counting({3})}),
              FailsWith(StatusCode::kBadData, HasSubstr("2 and 3")));
  file_.Node("Gather", "y", {"x", "i"});
  EXPECT_THAT(Run({Counting({2}), IntsOf({2})}), FailsWith(StatusCode::kBadData, HasSubstr("fit")));
  file_.Node("ConstantOfShape", "y", {"s"});
  EXPECT_THAT(Run({IntsOf({INT64_MAX, 4})}),
              FailsWith(StatusCode::kBadData, HasSubstr("impossible shape")));
}

}  // namespace
}  // namespace engine::onnx
