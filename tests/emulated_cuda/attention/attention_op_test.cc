// Which kernels the op attention runs, told by the bits of its results.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"
#include "kernels/attention_plain.h"
#include "ops.h"
#include "tests/emulated_cuda/attention/attention_values.h"

namespace engine::cuda_ops::test {
namespace {

// Everything of one op on one problem; T is its activation.
template <typename T>
class OpRun {
 public:
  explicit OpRun(const AttentionShape& shape) : shape_(shape) {
    EXPECT_TRUE(CudaDevice::Create(0, 0, &device_).ok());
    Stream* stream = nullptr;
    EXPECT_TRUE(device_->CreateStream(&stream).ok());
    stream_.reset(stream);
    const OptionValue values[] = {
        {.name = "heads", .type = OptionType::kInt, .integer = shape.heads},
        {.name = "causal", .type = OptionType::kBool, .integer = shape.causal ? 1 : 0}};
    op_.reset(kMakeAttention({.name = "attention",
                             .device = device_.get(),
                             .precision = kIsBf16 ? Precision::kBFloat16 : Precision::kFloat32},
                            Options(values)));
    EXPECT_TRUE(op_->Infer(std::vector<TensorSpec>{{packed(), kType, 1}}, &signature_).ok());
  }

  const AttentionShape& shape() const { return shape_; }
  int64_t rows() const { return int64_t{shape_.batch} * shape_.length; }

  struct Result {
    std::vector<T> y, dqkv;
  };

  // `offset`: elements between the beginning of an allocation and qkv.
  Result Run(const std::vector<T>& qkv, const std::vector<T>& dy, size_t offset = 0) {
    std::vector<T> moved(offset);
    moved.insert(moved.end(), qkv.begin(), qkv.end());
    const Array<T> x(moved), gradient(dy), y(dy.size()), dx(qkv.size());
    const Array<float> saved(Size(signature_.saved_bytes / 4)),
        workspace(Size(signature_.workspace_bytes / 4));
    const TensorView inputs[] = {{x.data() + offset, packed(), kType}},
                     outputs[] = {{y.data(), plain(), kType}},
                     output_grads[] = {{gradient.data(), plain(), kType}},
                     input_grads[] = {{dx.data(), packed(), kType}};
    const OpCall call = {.inputs = inputs,
                         .outputs = outputs,
                         .output_grads = output_grads,
                         .input_grads = input_grads,
                         .saved = saved.data(),
                         .workspace = workspace.data(),
                         .stream = stream_.get()};
    EXPECT_TRUE(op_->Forward(call).ok());
    EXPECT_TRUE(op_->Backward(call).ok());
    EXPECT_TRUE(stream_->Synchronize(10'000).ok());
    return {y.Read(), dx.Read()};
  }

  // The same by the kernels themselves.
  template <typename Forward, typename Backward>
  Result RunKernels(const std::vector<T>& qkv, const std::vector<T>& dy, const Forward& forward,
                    const Backward& backward) {
    const Array<T> x(qkv), gradient(dy), y(dy.size()), dx(qkv.size());
    const Array<float> log_sums(Size(rows() * shape_.heads)), delta(Size(rows() * shape_.heads));
    EXPECT_EQ(forward(shape_, x.data(), y.data(), log_sums.data(), nullptr), cudaSuccess);
    const AttentionBackwardCall<T> call = {
        x.data(), y.data(), log_sums.data(), gradient.data(), dx.data(), delta.data(), false};
    EXPECT_EQ(backward(shape_, call, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return {y.Read(), dx.Read()};
  }
  Result RunPlain(const std::vector<T>& qkv, const std::vector<T>& dy) {
    return RunKernels(qkv, dy, LaunchPlainAttentionForward<T>, LaunchPlainAttentionBackward<T>);
  }
  Result RunFlash(const std::vector<T>& qkv, const std::vector<T>& dy) {
    return RunKernels(qkv, dy, LaunchFlashForward, LaunchFlashBackward);
  }

 private:
  static constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;
  static constexpr DType kType = kIsBf16 ? DType::kBFloat16 : DType::kFloat32;

  Shape packed() const { return {shape_.batch, shape_.length, shape_.packed_width()}; }
  Shape plain() const { return {shape_.batch, shape_.length, shape_.width()}; }

  const AttentionShape shape_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Op> op_;
  OpSignature signature_;
};

template <typename T>
struct Values {
  std::vector<T> qkv, dy;

  explicit Values(const OpRun<T>& run)
      : qkv(RandomValues<T>(run.rows() * run.shape().packed_width(), 1.0, 1)),
        dy(RandomValues<T>(run.rows() * run.shape().width(), 1.0, 2)) {}
};

template <typename T>
bool Same(const std::vector<T>& a, const std::vector<T>& b) {
  return ToDoubles(a) == ToDoubles(b);
}

TEST(AttentionOp, FlashKernelsRunForHeadsOf64And128InBf16) {
  for (const int head_size : {64, 128}) {
    OpRun<Bf16> run(AttentionShape{1, 100, 2, head_size, true});
    const Values<Bf16> values(run);
    const auto got = run.Run(values.qkv, values.dy);
    const auto flash = run.RunFlash(values.qkv, values.dy);
    const auto plain = run.RunPlain(values.qkv, values.dy);
    EXPECT_TRUE(Same(got.y, flash.y));
    EXPECT_TRUE(Same(got.dqkv, flash.dqkv));
    EXPECT_FALSE(Same(got.y, plain.y)) << "no bit tells the kernels apart";
    EXPECT_FALSE(Same(got.dqkv, plain.dqkv)) << "no bit tells the kernels apart";
  }
}

TEST(AttentionOp, PlainKernelsRunForOtherHeadsAndForFloat32) {
  OpRun<Bf16> other(AttentionShape{1, 100, 2, 32, true});
  const Values<Bf16> rounded(other);
  EXPECT_TRUE(
      Same(other.Run(rounded.qkv, rounded.dy).dqkv, other.RunPlain(rounded.qkv, rounded.dy).dqkv));
  OpRun<float> single(AttentionShape{1, 100, 1, 64, false});
  const Values<float> values(single);
  EXPECT_TRUE(
      Same(single.Run(values.qkv, values.dy).dqkv, single.RunPlain(values.qkv, values.dy).dqkv));
}

// The flash kernels copy 16 bytes at a time.
TEST(AttentionOp, PlainKernelsRunForMemoryThatIsNotAligned) {
  OpRun<Bf16> run(AttentionShape{1, 70, 1, 64, true});
  const Values<Bf16> values(run);
  const auto got = run.Run(values.qkv, values.dy, 1);
  const auto plain = run.RunPlain(values.qkv, values.dy);
  EXPECT_TRUE(Same(got.y, plain.y));
  EXPECT_TRUE(Same(got.dqkv, plain.dqkv));
}

}  // namespace
}  // namespace engine::cuda_ops::test
