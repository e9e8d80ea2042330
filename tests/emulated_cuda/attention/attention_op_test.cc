// Which kernels the op attention runs, told by the bits of its results.
#include <gtest/gtest.h>

#include "tests/emulated_cuda/attention/attention_op_run.h"

namespace engine::cuda_ops::test {
namespace {

template <typename T>
void ExpectKernels(const AttentionShape& shape, Kernels kernels, size_t offset = 0) {
  SCOPED_TRACE(::testing::Message() << "heads of " << shape.head_size);
  const OpResults<T> got = RunAttentionOp<T>(shape, {.offset = offset});
  const Problem<T> problem(shape);
  for (const Kernels each : {Kernels::kFlash, Kernels::kPlain}) {
    if (each == Kernels::kFlash && !IsFlashHeadSize(shape.head_size)) continue;
    if (each == Kernels::kFlash && std::is_same_v<T, float>) continue;
    const Results<T> by_kernels = Compute(problem, each);
    const bool same = each == kernels;  // else a bit tells the kernels apart
    EXPECT_EQ(ToDoubles(got.y) == ToDoubles(by_kernels.y), same);
    EXPECT_EQ(ToDoubles(got.dqkv) == ToDoubles(by_kernels.dqkv), same);
  }
}

TEST(AttentionOp, FlashKernelsRunForHeadsOf64And128InBf16) {
  for (const int head_size : {64, 128}) {
    ExpectKernels<Bf16>(AttentionShape{1, 100, 2, head_size, true}, Kernels::kFlash);
  }
}

// The flash kernels copy 16 bytes at a time.
TEST(AttentionOp, PlainKernelsRunForOtherHeadsForFloat32AndForMemoryThatIsNotAligned) {
  ExpectKernels<Bf16>(AttentionShape{1, 100, 2, 32, true}, Kernels::kPlain);
  ExpectKernels<float>(AttentionShape{1, 100, 1, 64, false}, Kernels::kPlain);
  ExpectKernels<Bf16>(AttentionShape{1, 70, 1, 64, true}, Kernels::kPlain, 1);
}

}  // namespace
}  // namespace engine::cuda_ops::test
