// Sums in parts: kernels at sizes with several tiles, parts and chunks, against sums in double
// precision; and that parts grow with the rows, as workspaces are made for the most of them.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/channels.h"
#include "kernels/embedding.h"
#include "kernels/flat_math.h"
#include "kernels/layer_norm.h"
#include "tests/emulated_cuda/device_array.h"

namespace engine::cuda_ops {
namespace {

template <typename T>
using DeviceArray = emulated_cuda::Array<T>;

std::vector<__nv_bfloat16> Numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<__nv_bfloat16> values(count);
  for (auto& value : values) {
    value = __float2bfloat16_rn(static_cast<float>(random() % 129) / 64 - 1);
  }
  return values;
}

double At(const std::vector<__nv_bfloat16>& values, int64_t i) {
  return static_cast<double>(__bfloat162float(values[static_cast<size_t>(i)]));
}

TEST(CudaSums, PartsGrowWithTheRows) {
  for (const int32_t multiprocessors : {1, 108, 132}) {
    for (const int64_t width : {1, 768, 2304, 50304}) {
      int64_t columns = 0, norm = 0;
      for (int64_t rows = 0; rows < 70000; rows += 1 + rows / 7) {
        EXPECT_GE(ColumnParts(rows, width, multiprocessors), std::max<int64_t>(columns, 1));
        EXPECT_GE(LayerNormParts(rows, multiprocessors), std::max<int64_t>(norm, 1));
        columns = ColumnParts(rows, width, multiprocessors);
        norm = LayerNormParts(rows, multiprocessors);
      }
    }
  }
}

// More tiles than one, the last of them and the last part incomplete; packed and not.
TEST(CudaSums, ColumnsOfTilesAndParts) {
  for (const int64_t width : {520, 517}) {
    const int64_t rows = 333, parts = 5;
    const auto x = Numbers(static_cast<size_t>(rows * width), 1);
    const DeviceArray<__nv_bfloat16> on_device(x);
    const DeviceArray<float> partials(std::vector<float>(static_cast<size_t>(parts * width), NAN));
    const DeviceArray<float> sums(std::vector<float>(static_cast<size_t>(width), 2));
    ASSERT_EQ(LaunchColumnSums(on_device.data(), rows, width, partials.data(), parts, sums.data(),
                               true, nullptr),
              cudaSuccess);
    const std::vector<float> got = sums.Read();
    for (int64_t column = 0; column < width; ++column) {
      double want = 2;
      for (int64_t row = 0; row < rows; ++row) want += At(x, row * width + column);
      ASSERT_NEAR(got[static_cast<size_t>(column)], want, 1e-4) << column << " of " << width;
    }
  }
}

// In packs and one by one, with a last block that is incomplete: the bits of the shared formula.
TEST(CudaSums, UpdatesHaveTheSameBitsInPacksAndOneByOne) {
  const size_t count = static_cast<size_t>(kUpdateBlock) + 1027, room = count + 1;
  const auto floats = [&](unsigned seed) {
    std::vector<float> values;
    for (const auto& value : Numbers(room, seed)) values.push_back(__bfloat162float(value));
    return values;
  };
  std::vector<float> second = floats(4);
  for (float& value : second) value = std::abs(value);
  const std::vector<float> gradient = floats(1), before = floats(2), first = floats(3);
  for (const size_t offset : {size_t{0}, size_t{1}}) {
    const DeviceArray<float> value(before), g(gradient), m(first), v(second);
    const DeviceArray<float> words(std::vector<float>{0.5f, 1e-2f});  // scale, learning rate
    const DeviceArray<uint64_t> step(std::vector<uint64_t>{7});
    const DeviceArray<__nv_bfloat16> rounded(Numbers(room, 5));
    UpdateSpans spans;
    spans.Add({value.data() + offset,
               g.data() + offset,
               {m.data() + offset, v.data() + offset},
               rounded.data() + offset,
               words.data(),
               static_cast<int64_t>(count),
               2.0f,
               0.1f},
              kUpdateBlock);
    const KernelRule rule = {0.9f, 0.95f, 1e-8f, 0, true, false};
    ASSERT_EQ(LaunchUpdate(spans, rule, step.data(), words.data() + 1, nullptr), cudaSuccess);
    const std::vector<float> got = value.Read(), got_m = m.Read(), got_v = v.Read();
    const auto got_rounded = rounded.Read();
    const AdamWCoefficients folded = FoldAdamW(1e-2f * 2.0f, 0.1f, 0.9f, 0.95f, 7);
    for (size_t i = offset; i < offset + count; ++i) {
      float want_m = first[i], want_v = second[i];
      const float want =
          AdamWElement(folded, 0.9f, 0.95f, 1e-8f, gradient[i] * 0.5f, before[i], &want_m, &want_v);
      ASSERT_EQ(got[i], want) << i;
      ASSERT_EQ(got_m[i], want_m) << i;
      ASSERT_EQ(got_v[i], want_v) << i;
      ASSERT_EQ(__bfloat162float(got_rounded[i]), __bfloat162float(__float2bfloat16_rn(want)));
    }
    const size_t outside = offset == 0 ? count : 0;
    EXPECT_EQ(got[outside], before[outside]);
  }
}

class EmbeddingSums : public ::testing::TestWithParam<int64_t> {};

// Runs of one token that are as long as a chunk, longer, and that end with one.
TEST_P(EmbeddingSums, EveryRunOfATokenIsAddedOnce) {
  const int64_t vocabulary = GetParam(), width = 8, count = 5000;
  std::mt19937 random(static_cast<unsigned>(vocabulary));
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<unsigned>(vocabulary));
    if (random() % 4 == 0) token = static_cast<int32_t>(vocabulary - 1);  // a frequent one
  }
  std::fill(tokens.begin(), tokens.begin() + 128, 0);
  const auto dy = Numbers(static_cast<size_t>(count * width), 2);
  const DeviceArray<int32_t> device_tokens(tokens);
  const DeviceArray<__nv_bfloat16> device_dy(dy);
  const DeviceArray<float> gradient(std::vector<float>(static_cast<size_t>(vocabulary * width), 1));
  const EmbeddingScratch size(nullptr, count, width, vocabulary);
  const DeviceArray<char> memory(std::vector<char>(static_cast<size_t>(size.size_bytes)));
  ASSERT_EQ(
      LaunchEmbeddingGradient(device_tokens.data(), device_dy.data(), count, width, vocabulary,
                              EmbeddingScratch(memory.data(), count, width, vocabulary),
                              gradient.data(), nullptr),
      cudaSuccess);
  std::vector<double> want(static_cast<size_t>(vocabulary * width), 1);
  for (int64_t i = 0; i < count * width; ++i) {
    want[static_cast<size_t>(tokens[static_cast<size_t>(i / width)] * width + i % width)] +=
        At(dy, i);
  }
  const std::vector<float> got = gradient.Read();
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 1e-3) << "token " << i / width;
  }
}

INSTANTIATE_TEST_SUITE_P(, EmbeddingSums, ::testing::Values(1, 2, 3, 16, 17, 300, 5000));

}  // namespace
}  // namespace engine::cuda_ops
