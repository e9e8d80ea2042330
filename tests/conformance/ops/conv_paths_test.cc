// conv2d takes other paths for other shapes (panels that are packed or not, tiles along rows,
// columns or samples, chunks): every kernel, stride, padding, plane and number of channels of a
// grid against the formula, forward and all gradients.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

class ConvPaths : public ::testing::TestWithParam<std::string> {
 protected:
  void Check(const std::string& window, const Shape& x, int64_t channels,
             const std::vector<int>& threads = {1}, const std::string& op = "conv2d") {
    OpSample sample = Sample(op + "(" + window + ")=float32[1*]");
    sample.attributes["channels"] = std::to_string(channels);
    sample.inputs[0].shape = x;
    SCOPED_TRACE(sample.Text());
    std::optional<Expected> expected;  // takes longer than the op
    for (const int count : threads) {
      Fed fed(GetParam(), sample, {.threads = count});
      if (!expected) expected.emplace(fed);
      expected->Check(fed.Run());
    }
  }
};

TEST_P(ConvPaths, EveryWindowOverEveryPlane) {
  for (int64_t kernel : {1, 2, 3, 5, 7}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t padding : {int64_t{0}, kernel / 2, kernel - 1}) {
        for (int64_t extent : {1, 2, 5, 8}) {
          if (extent + 2 * padding < kernel) continue;
          Check("kernel=" + std::to_string(kernel) + ",stride=" + std::to_string(stride) +
                    ",padding=" + std::to_string(padding),
                Shape{3, extent, extent + 1, 3}, 5);
        }
      }
    }
  }
}

TEST_P(ConvPaths, EveryDilationAndGroup) {
  for (const std::string op : {"conv2d", "conv_transpose2d"}) {
    for (const char* kernel : {"2,3", "3,1"}) {
      for (int stride : {1, 2, 3, 4}) {
        for (int dilation : {1, 2, 3, 4}) {
          for (int groups : {1, 2, 4}) {
            Check("kernel=" + std::string(kernel) + ",stride=" + std::to_string(stride) +
                      ",dilation=" + std::to_string(dilation) +
                      ",padding=1,2,0,1,groups=" + std::to_string(groups),
                  Shape{2, 9, 8, 4}, groups == 4 ? 4 : 6, {1}, op);
          }
        }
      }
    }
  }
}

TEST_P(ConvPaths, EveryNumberOfChannels) {
  for (int64_t inputs : {1, 3, 5, 16, 33}) {
    for (int64_t outputs : {1, 3, 15, 16, 17, 32, 33, 48, 64, 70}) {
      Check("kernel=3,stride=1,padding=1", Shape{5, 4, 3, inputs}, outputs);
      Check("kernel=3,stride=2,padding=1", Shape{1, 2, 2, inputs}, outputs);
    }
  }
}

TEST_P(ConvPaths, EveryHeightOfATile) {
  for (int64_t width = 1; width <= 31; ++width) {
    Check("kernel=3,stride=1,padding=1", Shape{1, 2, width, 2}, 17);
    Check("kernel=1,stride=1,padding=0", Shape{1, width, 1, width}, 16);
    Check("kernel=2,stride=1,padding=0", Shape{width, 2, 2, 3}, 16);
  }
}

// Planes too large for the second-level cache: samples are taken in blocks.
TEST_P(ConvPaths, LargePlanes) {
  const std::vector<int> threads = {1, 3, 8};
  Check("kernel=3,stride=1,padding=1", Shape{3, 40, 42, 8}, 80, threads);
  Check("kernel=3,stride=2,padding=1", Shape{4, 60, 61, 3}, 40, threads);
}

// Channels in whole registers, and positions enough: by Winograd's transforms, also of tiles that reach
// beyond the plane, in blocks of which the last is smaller.
TEST_P(ConvPaths, TilesOfFourByFour) {
  for (const std::string op : {"conv2d", "conv_transpose2d"}) {
    for (const char* padding : {"0", "1", "2", "1,2,0,1"}) {
      Check("kernel=3,stride=1,padding=" + std::string(padding), Shape{6, 9, 10, 16}, 48, {1}, op);
    }
  }
  Check("kernel=3,stride=1,padding=1", Shape{5, 18, 12, 48}, 32, {1, 3});
}

INSTANTIATE_TEST_SUITE_P(, ConvPaths, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
