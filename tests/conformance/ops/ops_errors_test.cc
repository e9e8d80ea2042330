// Wrong inputs of ops: each is one sentence that names the op and what it found.
#include <gtest/gtest.h>

#include "engine/ext/accelerator.h"
#include "tests/conformance/ops/op_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

class OpErrors : public ::testing::TestWithParam<std::string> {
 protected:
  const LoadedOps ops_ = Load(GetParam());
};

TEST_P(OpErrors, InputsThatDoNotFitAreRefused) {
  const BadInputs bad = {
      {"linear(units=3)=", "got 0 inputs; it needs 1"},
      {"linear(units=3)=float32[4*,2],float32[3,2]",
       "got 2 inputs; it needs 1, or 3 with its parameters"},
      {"linear(units=3)=float32[4*,2],float32[2,3],float32[3]",
       "input 1 is float32 (2, 3); it needs the parameter 'weight', float32 (3, 2)"},
      {"linear(units=3)=float32[4*,2],float32[3,2],float32[3*]", "the parameter 'bias'"},
      {"linear(units=3)=int32[4*,2]", "input 0 is int32 (4, 2); it needs float32"},
      {"linear(units=3)=float32[4*]", "input 0 is float32 (4)"},
      {"tied_linear=float32[4*,2]", "got 1 inputs; it needs 2"},
      {"tied_linear=float32[4*,2],float32[5,3]", "input 1 is float32 (5, 3)"},
      {"tied_linear=float32[4*,2],float32[5*,2]", "a parameter"},
      {"relu=int32[4*]", "input 0 is int32 (4); it needs float32"},
      {"gelu=", "got 0 inputs"},
      {"tanh=int32[4*]", "input 0 is int32 (4)"},
      {"add=float32[4*,2],float32[4*,3]", "input 1 is float32 (4, 3)"},
      {"add=float32[4*,2],float32[4,2]", "a shape that broadcasts with float32 (4, 2)"},
      {"accumulate=float32[4*],float32[5*]", "input 1 is float32 (5)"},
      {"layer_norm=float32[4*]", "input 0 is float32 (4)"},
      {"batch_norm=", "got 0 inputs"},
      {"batch_norm=float32[4*,3],float32[3],float32[3],float32[3],float32[3]",
       "got 5 inputs; it needs 1"},
      {"batch_norm=float32[4*]", "input 0 is float32 (4); it needs float32 (B, ..., C)"},
      {"batch_norm=int32[4*,3]", "input 0 is int32 (4, 3)"},
      {"batch_norm=float32[4*,3,0]", "input 0 is float32 (4, 3, 0)"},
      {"dropout(rate=0.1)=int32[4*]", "input 0 is int32 (4)"},
      {"dropout(rate=0.1)=", "got 0 inputs"},
      {"dropout(rate=1)=float32[4*]", "it needs 0 <= rate < 1"},
      {"dropout(rate=-0.1)=float32[4*]", "a rate of -0.1 is no probability below 1"},
      {"embedding(vocabulary=5,width=2,positions=4)=float32[4*,2]",
       "input 0 is float32 (4, 2); it needs int32 (B, ..., T)"},
      {"embedding(vocabulary=5,width=2,positions=4)=int32[4*,5]",
       "samples of 5 tokens are longer than the 4 positions"},
      {"attention(heads=4)=float32[2*,3,10]", "input 0 is float32 (2, 3, 10)"},
      {"attention(heads=4)=float32[2*,12]", "input 0 is float32 (2, 12)"},
      {"attention(heads=4)=float32[2*,3,18]", "4 heads do not divide a width of 6"},
      {"to_channels_last=float32[4*,2,3]", "input 0 is float32 (4, 2, 3)"},
      {"to_channels_last=int32[4*,2,3,3]", "it needs float32 (B, C, H, W)"},
      {"conv2d(kernel=5,padding=0,channels=2)=", "got 0 inputs"},
      {"conv2d(kernel=5,padding=0,channels=2)=float32[4*,2,3]", "input 0 is float32 (4, 2, 3)"},
      {"conv2d(kernel=5,padding=0,channels=2)=float32[4*,2,9,3]",
       "input 0 is float32 (4, 2, 9, 3); it needs a plane that the kernel"},
      {"conv2d(channels=2)=float32[4*,9,9,3]", "'kernel' is no list for a plane; it needs one"},
      {"conv2d(kernel=3,stride=1,2,3,channels=2)=float32[4*,9,9,3]", "'stride' is no list"},
      {"conv2d(kernel=3,padding=1,2,3,channels=2)=float32[4*,9,9,3]", "or four, for top, left"},
      {"conv2d(kernel=3,groups=2,channels=4)=float32[4*,9,9,3]",
       "2 groups do not divide the 3 channels of its input and the 4 of its output"},
      {"conv2d(kernel=3,groups=3,channels=4)=float32[4*,9,9,3]", "3 groups do not divide"},
      {"conv2d(kernel=3,channels=4,layout=oihw)=float32[4*,9,9,3],float32[3,3,3,4],float32[4]",
       "it needs the parameter 'weight', float32 (4, 3, 3, 3)"},
      {"conv_transpose2d(kernel=1,padding=2,channels=2)=float32[4*,3,4,3]",
       "input 0 is float32 (4, 3, 4, 3)"},
      {"conv_transpose2d(kernel=2,output_padding=1,1,1,channels=2)=float32[4*,3,4,3]",
       "'output_padding' is no list"},
      {"max_pool(kernel=5)=float32[4*,9,4,3]", "input 0 is float32 (4, 9, 4, 3)"},
      {"max_pool(kernel=2,dilation=3,padding=1)=float32[4*,2,9,3]", "larger than the padding"},
      {"avg_pool(kernel=5)=float32[4*,9,9]", "input 0 is float32 (4, 9, 9)"},
      {"avg_pool(kernel=2,padding=2)=float32[4*,9,9,1]", "a kernel larger than the padding"},
      {"resize(size=1,2,3)=float32[4*,9,9,1]", "a 'size' of one number or two"},
      {"resize(scale=0.1)=float32[4*,9,9,1]", "a 'scale' that leaves some of them"},
      {"group_norm(groups=2)=float32[4*,9,3]", "2 groups do not divide 3 channels"},
      {"to_channels_first=float32[4*,9,3]", "channels last"},
      {"global_avg_pool=float32[4*,9]", "input 0 is float32 (4, 9)"},
      {"flatten=int32[4*,2]", "input 0 is int32 (4, 2)"},
      {"softmax_cross_entropy=float32[4*],int32[]", "input 0 is float32 (4)"},
      {"softmax_cross_entropy=float32[4*,2],int32[5*]", "input 1 is int32 (5)"},
      {"softmax_cross_entropy=float32[4*,2],float32[4*]", "input 1 is float32 (4)"},
      {"softmax_cross_entropy=float32[4*,2],int32[4*],float32[3]", "one for each class"},
      {"softmax_cross_entropy=float32[4*,2],int32[4*],float32[4*],float32[4*]", "input 3 is"},
      {"mean_squared_error=float32[4*,2],float32[4*,3]", "input 1 is float32 (4, 3)"},
      {"mean_absolute_error=float32[4*,2],int32[4*,2]", "it needs float32, shaped as input 0"},
      {"huber=float32[4*,2]", "got 1 inputs; it needs 2"},
      {"binary_cross_entropy=float32[4*,2],int32[4*]", "or int32 of 0 and 1"},
      {"binary_cross_entropy=float32[4*],float32[4*],float32[2]", "a weight for each sample"},
  };
  ExpectRefused(GetParam(), {}, bad);
  if (Query<Accelerator>(*ops_.device()) != nullptr) return;  // it numbers taps with more bits
  ExpectRefused(GetParam(), {},
                {{"global_max_pool=float32[4*,300,300,1]", "at most 65536 positions"}});
}

TEST_P(OpErrors, InputsOfArrayOpsThatDoNotFitAreRefused) {
  ExpectRefused(
      GetParam(), {},
      {
          {"sigmoid=int32[4*]", "input 0 is int32 (4); it needs float32"},
          {"pow(exponent=2)=", "got 0 inputs; it needs 1"},
          {"multiply=float32[4*,2]", "got 1 inputs; it needs 2"},
          {"multiply=float32[4*,2],float32[4*,3]", "a shape that broadcasts with float32 (4, 2)"},
          // Samples are dimension 0 of the result, and nothing else is.
          {"multiply=float32[4*,2],float32[4*]", "input 1 is float32 (4)"},
          {"multiply=float32[4*,2],float32[4,2]", "one without samples has 1 there"},
          {"multiply=float32[4*],float32[3,4]", "input 1 is float32 (3, 4)"},
          {"multiply=float32[4*,2],float32[8*,2]", "input 1 is float32 (8, 2)"},
          {"where=float32[4*],float32[4*]", "got 2 inputs; it needs 3"},
          {"where=int32[4*],float32[4*],float32[4*]", "input 0 is int32 (4)"},
          {"prelu=float32[4*,3],float32[2]", "it needs the parameter 'weight', float32 (3)"},
          {"softmax(axis=0)=float32[4*,3]",
           "float32 (4, 3), with samples in axis 0, has no axis 0 that this op can take"},
          {"softmax(axis=2)=float32[4,3]", "float32 (4, 3) has no axis 2"},
          {"log_softmax(axis=-3)=float32[4*,3]", "has no axis -3"},
          {"matmul=float32[4*,3],float32[4,5]",
           "float32 (4, 3) and float32 (4, 5) have no product"},
          {"matmul=float32[4*,3,2],float32[5*,2,3]", "have no product"},
          {"matmul=float32[4*,3],float32[4*,3]", "have no product"},
          {"matmul(transpose_a=true)=float32[4*,3],float32[4,5]", "float32 (4, 3) transposed and"},
          {"matmul=float32[3],float32[3,5]", "input 0 is float32 (3); it needs float32, at least"},
          {"rms_norm=float32[4*]", "input 0 is float32 (4)"},
          {"linear(units=5,transposed=true)=float32[4*,3],float32[5,3],float32[5]",
           "it needs the parameter 'weight', float32 (3, 5)"},
          {"scaled_dot_product_attention=float32[2*,3,4],float32[2*,3,4],float32[2*,3,4]",
           "it needs float32 (B, H, T, D)"},
          {"scaled_dot_product_attention=float32[2*,3,4,5],float32[2*,3,4,6],float32[2*,3,4,6]",
           "input 1 is float32 (2, 3, 4, 6); it needs float32 (B, H, S, D)"},
          {"scaled_dot_product_attention=float32[2*,3,4,5],float32[2*,3,7,5],float32[2*,3,4,5]",
           "input 2 is float32 (2, 3, 4, 5)"},
          {"scaled_dot_product_attention=float32[2*,3,4,5],float32[2*,3,4,5],float32[2*,3,4,5],"
           "float32[5,4]",
           "input 3 is float32 (5, 4); it needs float32 that broadcasts to the scores"},
          {"rotary_embedding=float32[2*,4,5],float32[4,5],float32[4,5]", "with an even D"},
          {"rotary_embedding=float32[2*,4,6],float32[4,6],float32[4,3]",
           "input 2 is float32 (4, 3); it needs float32 (T, D) without a batch"},
          {"reduce_sum(axes=0)=float32[4*,3]", "has no axis 0"},
          {"reduce_mean(axes=1,2)=float32[4*,3]", "has no axis 2"},
          {"reshape(shape=4,-1)=float32[5*,6]", "'shape' does not fit float32 (5, 6)"},
          {"reshape(shape=-1,-1)=float32[5*,6]", "with at most one -1"},
          {"reshape(shape=1,1,1,1,1,6)=float32[5*,6]", "'shape' does not fit"},
          {"transpose(order=1,1)=float32[5*,6,7]", "each axis of x once"},
          {"transpose(order=0,2,1)=float32[5*,6,7]", "without that of samples"},
          {"concat=float32[5*,6]", "got 1 inputs; it needs 2 to 12"},
          {"concat(axis=0)=float32[5*,6],float32[5*,6]", "has no axis 0"},
          {"concat(axis=1)=float32[5*,6,2],float32[5*,6,3]", "with the extents of the others"},
          {"concat(axis=1)=float32[5*,6],float32[5,6]", "input 1 is float32 (5, 6)"},
          {"slice(begin=3,end=3)=float32[5*,6]",
           "positions 3 to 3 in steps of 1 are none of axis 1"},
          {"slice(step=0)=float32[5*,6]", "name some"},
          {"pad(before=1,2)=float32[5*,6]", "a number for each axis but that of samples"},
          {"pad(before=6,mode=reflect)=float32[5*,6]", "reflected, less than its extent"},
          {"expand(shape=3,4)=float32[5*,2,4]", "the extents of x, where these are not 1"},
          {"expand(shape=3,4)=float32[5*,4]", "'shape' does not fit float32 (5, 4)"},
          {"gather(indices=6)=float32[5*,6]", "positions of the axis"},
          {"gather(indices=-7)=float32[5*,6]", "'indices' does not fit"},
      });
}

TEST_P(OpErrors, ActivationsInFloat32AreRefusedInBFloat16) {
  if (!HasBFloat16(GetParam())) return;  // this library has one precision
  const BadInputs bad = {
      {"tied_linear=float32[4*,2],float32[5,2]", "input 1 is float32 (5, 2)"},
      {"mlp(units=3)=float32[4*,2]", "it needs bfloat16 (..., K)"},
      {"relu=float32[4*]", "input 0 is float32 (4); it needs bfloat16"},
      {"gelu=float32[4*]", "it needs bfloat16"},
      {"add=float32[4*,2],float32[4*,2]", "input 0 is float32 (4, 2); it needs bfloat16"},
      {"layer_norm=float32[4*,2]", "it needs bfloat16 (..., C)"},
      {"add_layer_norm=float32[4*,2],float32[4*,2]", "it needs bfloat16 (..., C)"},
      {"dropout(rate=0.1)=float32[4*,2]", "it needs bfloat16 (B, ...)"},
      {"attention(heads=2)=float32[2*,3,12]", "input 0 is float32 (2, 3, 12); it needs bfloat16"},
      {"softmax_cross_entropy=float32[4*,2],int32[4*]", "it needs bfloat16 (..., V)"},
  };
  ExpectRefused(GetParam(), {.activation = DType::kBFloat16}, bad);
}

// Runs a sample with element `index` of an input set to `value`. With a library of its own,
// as a device that works on its own does not forget what it found.
Status RunWith(const std::string& path, const char* text, size_t input, size_t index,
               double value) {
  Fed fed(path, Sample(text));
  fed.problem.inputs[input].values[index] = value;
  return RunOp(fed.ops.device(), fed.op, fed.problem).status;
}

// `good` is taken; `bad` ones are named, with `place`.
void ExpectBadData(const std::string& path, const char* text, size_t input, size_t index,
                   double good, const std::vector<double>& bad, const std::string& what,
                   const std::string& place) {
  EXPECT_TRUE(RunWith(path, text, input, index, good).ok());
  for (const double value : bad) {
    const Status status = RunWith(path, text, input, index, value);
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    EXPECT_THAT(status.message(), HasSubstr(what + std::to_string(int64_t(value)) + place));
  }
}

// A device that works on its own knows only the place in the batch.
TEST_P(OpErrors, TokensOutsideTheVocabularyAreBadData) {
  const bool later = Query<Accelerator>(*ops_.device()) != nullptr;
  ExpectBadData(GetParam(), "embedding(vocabulary=5,width=2)=int32[3*,4]", 0, 6, 4,
                {5, -1, 2147483647}, "token ",
                later ? " at position 6 of its batch" : " at position 2 of sample 1");
}

TEST_P(OpErrors, TargetsThatAreNoClassAreBadData) {
  ExpectBadData(GetParam(), "softmax_cross_entropy=float32[4*,5],int32[4*]", 1, 3, -1,
                {5, -2, -2147483648.0}, "target ", " at position 3");
  ExpectBadData(GetParam(), "binary_cross_entropy=float32[4*],int32[4*]", 1, 2, 1, {2, -1},
                "target ", " at position 2");
}

TEST_P(OpErrors, WeightsBelowZeroAreBadData) {
  for (const char* op : {"softmax_cross_entropy=float32[4*,5],int32[4*],float32[4*]",
                         "mean_squared_error=float32[4*],float32[4*],float32[4*]"}) {
    EXPECT_TRUE(RunWith(GetParam(), op, 2, 3, 0).ok());
    const Status status = RunWith(GetParam(), op, 2, 3, -0.5);
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    EXPECT_THAT(status.message(), HasSubstr("a sample weight of -0.5 at position 3"));
  }
}

INSTANTIATE_TEST_SUITE_P(, OpErrors, ::testing::ValuesIn(PluginPaths({"cpu_ops"})), kNameOfLibrary);

}  // namespace
}  // namespace engine::test
