// As ops_errors_test.cc, of functions of elements and ops on arrays.
#include <gtest/gtest.h>

#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

class ArrayErrors : public ::testing::TestWithParam<std::string> {};

TEST_P(ArrayErrors, InputsThatDoNotFitAreRefused) {
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

INSTANTIATE_TEST_SUITE_P(, ArrayErrors, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
