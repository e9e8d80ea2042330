#include <string>
#include <vector>

#include "tests/conformance/ops/op_rig.h"
#include "tests/support/words.h"

namespace engine::test {
namespace {

// As in formula_cases.cc.
const struct {
  std::vector<std::string> ops, inputs;
} kArrayCases[] = {
    {Words("sigmoid silu hard_sigmoid hard_swish leaky_relu leaky_relu(slope=0) elu elu(alpha=0.5) "
           "gelu_erf clip clip(min=-0.5,max=0.25) scale(factor=-2,offset=3) exp log sqrt "
           "reciprocal abs erf sin cos softplus mish pow(exponent=2) pow(exponent=3) "
           "pow(exponent=0.5) pow(exponent=-0.5) pow(exponent=-1) pow(exponent=1.7)"),
     {"float32[33*]", "float32[3*,1,7]"}},
    {{"gelu_erf", "silu", "clip(max=0)"}, {"float32[160*,257]"}},
    // Each way of repeating: neither, rows, columns, both, samples, with one side or the other.
    {{"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"},
     {"float32[5*,7],float32[5*,7]", "float32[5*,7],float32[7]", "float32[7],float32[5*,7]",
      "float32[5*,3,7],float32[3,1]", "float32[4*,3,1,5],float32[4*,1,6,5]",
      "float32[2*,3,1],float32[1,1,9]", "float32[6*,5],float32[1]", "float32[6,5],float32[6,1]"}},
    {{"multiply", "subtract"},
     {"float32[],float32[3*]", "float32[160*,257],float32[257]",
      "float32[160*,257],float32[160*,1]", "float32[2000*,3,7],float32[7]",
      "float32[40*,600],float32[1]", "float32[30*,4,300],float32[30*,4,1]"}},
    {{"prelu"},
     {"float32[5*,7]", "float32[4*,3,2,9]", "float32[40*,600],float32[1]",
      "float32[9*,33],float32[33]"}},
    {{"where"},
     {"float32[5*,7],float32[5*,7],float32[5*,7]", "float32[3,7],float32[5*,3,7],float32[]",
      "float32[5*,1],float32[5*,7],float32[7]", "float32[1],float32[5*,7],float32[5*,1]",
      "float32[60*,300],float32[300],float32[1,1]"}},
    {{"softmax", "log_softmax", "softmax(axis=1)", "log_softmax(axis=1)"},
     {"float32[5*,7]", "float32[3*,5,70]", "float32[2*,33,3,4]", "float32[3*,257]",
      "float32[600*,65]", "float32[60*,7,100]"}},
    {{"matmul"},
     {"float32[5*,7],float32[7,3]", "float32[2*,4,7],float32[7,3]",
      "float32[2*,4,7],float32[2*,7,3]", "float32[2*,3,4,8],float32[3,8,16]",
      "float32[3,4,5],float32[2*,1,5,6]", "float32[20*,3,16,33],float32[20*,3,33,8]",
      "float32[4,5],float32[5,3]"}},
    {{"matmul(transpose_a=true,scale=0.5)"},
     {"float32[2*,7,4],float32[7,3]", "float32[3*,2,7,4],float32[3*,1,7,3]"}},
    {{"matmul(transpose_b=true,scale=0.125)"},
     {"float32[5*,7],float32[3,7]", "float32[2*,3,4,8],float32[2*,3,5,8]",
      "float32[2*,3,4,8],float32[5,8]"}},
    {{"matmul(transpose_a=true,transpose_b=true)"}, {"float32[3*,7,4],float32[3*,5,7]"}},
    {{"linear(units=5,transposed=true)"},
     {"float32[4*,7]", "float32[2*,3,4],float32[4,5],float32[5]"}},
    {{"rms_norm(epsilon=0.1)"}, {"float32[4*,1]"}},
    {{"rms_norm"},
     {"float32[3*,7]", "float32[2*,5,33]", "float32[600*,64]", "float32[3*,768],float32[768]"}},
    {{"embedding(vocabulary=5,width=3)"}, {"int32[7*]", "int32[2*,3,4]"}},
    {{"embedding(vocabulary=5,width=7,positions=4)"},
     {"int32[3*,2,4]", "int32[3*,4],float32[5,7],float32[4,7]"}},
    {{"scaled_dot_product_attention", "scaled_dot_product_attention(causal=true,scale=0.3)"},
     {"float32[1*,1,1,3],float32[1*,1,1,3],float32[1*,1,1,2]",
      "float32[2*,3,7,5],float32[2*,3,7,5],float32[2*,3,7,5]",
      "float32[2*,2,13,8],float32[2*,2,21,8],float32[2*,2,21,16]",
      "float32[2*,1,70,16],float32[2*,1,33,16],float32[2*,1,33,3]",
      "float32[3*,2,9,4],float32[3*,2,19,4],float32[3*,2,19,4],float32[9,19]",
      "float32[3*,2,9,4],float32[3*,2,6,4],float32[3*,2,6,4],float32[2,1,6]",
      "float32[3*,2,9,4],float32[3*,2,6,4],float32[3*,2,6,4],float32[3*,1,9,1]"}},
    {{"scaled_dot_product_attention", "scaled_dot_product_attention(causal=true)"},
     {"float32[2*,1,5,64],float32[2*,1,5,64],float32[2*,1,5,64]"}},
    {{"rotary_embedding", "rotary_embedding(interleaved=true)"},
     {"float32[2*,5,6],float32[5,6],float32[5,6]",
      "float32[3*,4,7,34],float32[7,34],float32[7,34]"}},
    {{"reduce_sum", "reduce_mean", "reduce_max", "reduce_sum(axes=1,keep=true)",
      "reduce_mean(axes=1)", "reduce_max(axes=1)", "reduce_mean(axes=-1,keep=true)",
      "reduce_max(axes=-1)"},
     {"float32[5*,7]", "float32[2*,5,3,33]", "float32[100*,300]", "float32[3*,40,300]"}},
    {{"reduce_sum(axes=1,3)", "reduce_max(axes=1,3)"}, {"float32[2*,5,3,7]"}},
    {{"reduce_mean(axes=0)", "reduce_sum"}, {"float32[300,100]", "float32[40000]"}},
    {{"reshape(shape=-1)", "reshape(shape=2,-1,3)"}, {"float32[5*,4,9]", "float32[6,2]"}},
    {{"transpose"}, {"float32[5*,3,7]", "float32[40,33]", "float32[7*]"}},
    {{"transpose(order=2,1)"}, {"float32[3*,70,100]", "float32[5*,4,1]"}},
    {{"transpose(order=2,1,3)"}, {"float32[3*,5,4,9]"}},
    {{"transpose(order=3,1,2)", "transpose(order=2,3,1)"}, {"float32[2*,9,35,33]"}},
    {{"transpose(order=5,3,1,4,2)"}, {"float32[2*,3,4,2,5,3]"}},
    {{"concat"},
     {"float32[5*,7],float32[5*,3]", "float32[2*,3,4],float32[2*,3,1],float32[2*,3,9]"}},
    {{"concat(axis=1)"},
     {"float32[3*,2,5],float32[3*,4,5]", "float32[1,2,5],float32[3*,4,5]",
      "float32[300*,2,50],float32[1,1,50]"}},
    {{"concat(axis=2)"}, {"float32[3*,2,5],float32[1,2,1]"}},
    {{"concat(axis=0)"}, {"float32[3,2],float32[5,2]"}},
    {{"slice(begin=1,end=-1)", "slice(begin=1,step=2)", "slice(begin=-1,end=-1000,step=-1)",
      "slice(axis=1,end=2)", "slice(axis=1,begin=-1,end=-1000,step=-2)"},
     {"float32[5*,7]", "float32[3*,4,9]"}},
    {{"gather(indices=1)", "gather(axis=1,indices=0,-1,2,0)"},
     {"float32[5*,4]", "float32[3*,4,9]", "float32[30*,4,200]"}},
    {{"gather(axis=0,indices=2,2,0)"}, {"float32[4,200]"}},
    {{"pad(before=1,after=2)", "pad(before=2,after=0,mode=reflect)",
      "pad(before=3,after=1,mode=edge)"},
     {"float32[5*,7]"}},
    {{"pad(before=0,1,after=2,0,value=0.5)", "pad(before=1,2,after=2,1,mode=reflect)",
      "pad(before=0,3,after=2,1,mode=edge)"},
     {"float32[3*,4,5]"}},
    {{"pad(before=1,after=1,mode=reflect)"}, {"float32[9]"}},
    {{"expand(shape=3,4)"}, {"float32[5*,1,4]", "float32[5*,3,1]", "float32[4]"}},
    {{"expand(shape=-1,7,-1)"}, {"float32[5*,3,1,4]"}},
};

}  // namespace

std::vector<OpSample> ArrayCases() {
  std::vector<OpSample> samples;
  for (const auto& cases : kArrayCases) {
    for (const std::string& op : cases.ops) {
      for (const std::string& inputs : cases.inputs) samples.push_back(Sample(op + "=" + inputs));
    }
  }
  return samples;
}

}  // namespace engine::test
