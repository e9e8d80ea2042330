// Where elements lie: what a layout says is checked against the positions of elements, one by one.
#include "layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/matchers.h"

namespace engine::onnx {
namespace {

// For each element in logical order, its position in memory.
std::vector<int64_t> PositionsOf(const Layout& layout) {
  std::vector<int64_t> strides(layout.axes.size(), 1);
  for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * layout.axes[i];
  std::vector<int64_t> positions = {0};
  for (const std::vector<int>& dim : layout.dims) {
    for (const int axis : dim) {
      std::vector<int64_t> next;
      for (const int64_t position : positions) {
        for (int64_t i = 0; i < layout.Extent(axis); ++i) {
          next.push_back(position + (axis == kShared ? 0 : i * strides[axis]));
        }
      }
      positions = next;
    }
  }
  return positions;
}

Layout Image() {  // (N 2, C 6, H 3, W 4), channels last
  Layout layout = Layout::RowMajor({2, 3, 4, 6}, true, 2);
  layout.Permute(Dims{0, 3, 1, 2});
  return layout;
}

TEST(LayoutTest, ReshapingKeepsTheElementsInOrder) {
  for (const Dims& shape : {Dims{2, 2, 3, 3, 4}, Dims{2, 6, 12}, Dims{2, 1, 72}, Dims{12, 12},
                            Dims{144}, Dims{2, 6, 3, 2, 2}, Dims{2, 18, 2, 2}}) {
    Layout layout = Image();
    const std::vector<int64_t> before = PositionsOf(layout);
    ASSERT_TRUE(layout.Reshape(shape));
    EXPECT_EQ(layout.Shape(), shape);
    EXPECT_EQ(PositionsOf(layout), before);
  }
}

TEST(LayoutTest, AReshapeThatCutsAcrossAxesChangesNothing) {
  Layout layout = Image();
  EXPECT_FALSE(layout.Reshape({2, 4, 18}));  // 4 is not made of 6
  EXPECT_FALSE(layout.Reshape({3, 48}));     // nor 3 of two samples
  EXPECT_EQ(layout.Shape(), (Dims{2, 6, 3, 4}));
  EXPECT_EQ(layout.axes, (Dims{2, 3, 4, 6}));
}

TEST(LayoutTest, ABatchOfOneStaysABatch) {
  Layout layout = Layout::RowMajor({1, 4, 6}, true, 1);
  layout.Permute(Dims{1, 0, 2});
  ASSERT_TRUE(layout.Reshape({4, 2, 3}));  // (T, N * heads, D)
  layout.Permute(Dims{1, 0, 2});
  EXPECT_EQ(layout.dims[0], (std::vector<int>{0, 2}));
  EXPECT_EQ(layout.Shape(), (Dims{2, 4, 3}));
}

TEST(LayoutTest, ReorderedMemoryHasTheSameDimensions) {
  const Layout image = Image();
  const std::vector<int> order = {0, 3, 1, 2};
  const Layout moved = image.Reordered(order);
  EXPECT_EQ(moved.Shape(), image.Shape());
  std::vector<int64_t> in_order(144);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(PositionsOf(moved), in_order);  // channels first, as the dimensions are
}

TEST(LayoutTest, TensorsThatBroadcastAreCutAlike) {
  Layout windows = Layout::RowMajor({2, 2, 3, 5}, true, 2);  // (N, nH, nW, T)
  ASSERT_TRUE(windows.Reshape({12, 5}));
  ASSERT_TRUE(windows.Reshape({2, 6, 5}));
  Layout mask = Layout::RowMajor({6, 5}, false, 2);
  Layout* const both[] = {&windows, &mask};
  std::vector<std::vector<Column>> dims;
  ASSERT_TRUE(Align(both, 0, &dims));
  EXPECT_THAT(mask.axes, ElementsAre(2, 3, 5));
  ASSERT_EQ(dims.size(), 3u);
  EXPECT_THAT(dims[0][0].axis, ElementsAre(0, kAbsent));
  ASSERT_EQ(dims[1].size(), 2u);
  EXPECT_THAT(dims[1][1].axis, ElementsAre(2, 1));
  EXPECT_THAT(dims[2][0].axis, ElementsAre(3, 2));
}

TEST(LayoutTest, ShapesThatDoNotBroadcastAreRefused) {
  Layout a = Layout::RowMajor({2, 4}, true, 2), b = Layout::RowMajor({6}, false, 2);
  Layout* const both[] = {&a, &b};
  std::vector<std::vector<Column>> dims;
  EXPECT_FALSE(Align(both, 0, &dims));
}

}  // namespace
}  // namespace engine::onnx
