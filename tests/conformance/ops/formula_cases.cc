#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

// Each of `ops` on each of `inputs`. Sizes are small, and odd where that may hurt; some are just
// large enough for several threads.
const struct {
  std::vector<std::string> ops, inputs;
} kFormulaCases[] = {
    {{"linear(units=1)", "mlp(units=1)"}, {"float32[1*,1]"}},
    {{"linear(units=33)", "mlp(units=33)"}, {"float32[5*,7]"}},
    {{"linear(units=1,bias=false)"}, {"float32[4*,33]"}},
    {{"linear(units=7)", "mlp(units=7)"}, {"float32[2*,3,16]"}},
    {{"linear(units=96)", "mlp(units=96)"}, {"float32[400*,48]"}},
    {{"linear(units=16)", "mlp(units=16)"}, {"float32[5*,8]"}},
    {{"linear(units=3)"}, {"float32[5*,7],float32[3,7],float32[3]"}},  // parameters that are given
    {{"tied_linear"}, {"float32[2*,7,5],float32[33,5]", "float32[3*,16],float32[1,16]"}},
    {{"relu", "gelu", "tanh"}, {"float32[33*]", "float32[3*,1,7]", "float32[160*,257]"}},
    {{"flatten"}, {"float32[3*,2,7]", "float32[5*]"}},
    {{"add", "accumulate"}, {"float32[7*]", "float32[3*,5,7]", "float32[160*,257]"}},
    // With one column epsilon is large: it is rounding over epsilon that is measured. Rows of several
    // widths in registers, and wider ones, in packs or one by one.
    {{"layer_norm(epsilon=0.1)", "add_layer_norm(epsilon=0.1)"}, {"float32[4*,1]"}},
    {{"layer_norm(epsilon=1e-3)", "add_layer_norm"}, {"float32[2*,5,33]"}},
    {{"layer_norm", "add_layer_norm"},
     {"float32[3*,7]", "float32[600*,64]", "float32[5*,192]", "float32[3*,768]", "float32[3*,1280]",
      "float32[3*,1283]"}},
    {{"embedding(vocabulary=5,width=7)"}, {"int32[3*,7]"}},
    {{"embedding(vocabulary=33,width=33,positions=9)"}, {"int32[4*,7]"}},
    {{"embedding(vocabulary=1,width=1,positions=1)"}, {"int32[2*,1]"}},
    {{"embedding(vocabulary=50,width=64,positions=40)"}, {"int32[20*,40]"}},
    {{"embedding(vocabulary=70000,width=4,positions=33)"}, {"int32[3*,33]"}},
    {{"embedding(vocabulary=2,width=3)"}, {"int32[9*,300]"}},
    {{"attention(heads=1)", "attention(heads=1,causal=false)"},
     {"float32[1*,1,3]", "float32[1*,131,99]"}},
    {{"attention(heads=2)", "attention(heads=2,causal=false)"},
     {"float32[2*,7,30]", "float32[2*,64,192]"}},
    {{"attention(heads=7)"}, {"float32[3*,16,84]"}},
    {{"softmax_cross_entropy"},
     {"float32[5*,7],int32[5*]", "float32[9*,3],int32[9*]", "float32[2*,3,33],int32[2*,3]",
      "float32[4*,1],int32[4*]", "float32[500*,70],int32[500*]", "float32[3*,2048],int32[3*]",
      "float32[3*,120000],int32[3*]"}},  // more than a block can hold
    {{"softmax_cross_entropy(label_smoothing=0.1)", "softmax_cross_entropy(ignore_index=2)",
      "softmax_cross_entropy(label_smoothing=0.3,weight=0.5,auxiliary=true)"},
     {"float32[5*,7],int32[5*]", "float32[2*,3,33],int32[2*,3],float32[2*]",
      "float32[9*,3],int32[9*],float32[3],float32[9*]",
      "float32[2*,3,5],int32[2*,3],float32[2*,3],float32[5]"}},
    {{"mean_squared_error", "mean_absolute_error", "huber(delta=0.5)",
      "binary_cross_entropy(pos_weight=3)"},
     {"float32[5*,7],float32[5*,7]", "float32[5*,1],float32[5*]",
      "float32[4*,3,5],float32[4*,3,5],float32[4*]", "float32[160*,257],float32[160*,257]"}},
    {{"mean_squared_error(weight=3)", "huber(auxiliary=true)", "binary_cross_entropy"},
     {"float32[6*],float32[6*,1],float32[6*]"}},
    {{"binary_cross_entropy"},
     {"float32[6*,1],int32[6*]", "float32[6*,3],int32[6*,3],float32[6*,3]"}},
    // With few values per channel, epsilon is large: else what is measured is rounding over a
    // deviation that may be as small.
    {{"batch_norm(epsilon=0.1)", "batch_norm(epsilon=0.1,sync=false)"},
     {"float32[7*,1]", "float32[9*,5]", "float32[3*,2,33]"}},
    {{"batch_norm(epsilon=1e-3)", "batch_norm(epsilon=1e-3,sync=false)"},
     {"float32[5*,3,4,20]", "float32[4*,7,5,16]"}},
    {{"batch_norm", "batch_norm(sync=false)"}, {"float32[16*,9,11,35]"}},
    {{"dropout(rate=0.5)"}, {"float32[33*]"}},
    {{"dropout(rate=0.1)"}, {"float32[5*,7]"}},
    {{"dropout(rate=0)"}, {"float32[6*,3,5,4]"}},
    {{"dropout(rate=0.999)"}, {"float32[4*,3,3]"}},
    {{"dropout(rate=0.2)"}, {"float32[160*,257]"}},
    // Every window, over planes as (B, H, W, C).
    {{"conv2d(kernel=1,channels=1)"}, {"float32[1*,1,1,1]"}},
    {{"conv2d(kernel=1,stride=2,channels=16,bias=false)"}, {"float32[2*,5,4,3]"}},
    {{"conv2d(kernel=1,channels=48)"}, {"float32[5*,3,3,33]"}},
    {{"conv2d(kernel=2,padding=1,channels=3)"}, {"float32[2*,3,4,2]"}},
    {{"conv2d(kernel=2,stride=2,padding=0,channels=5)"}, {"float32[1*,5,7,5]"}},
    {{"conv2d(kernel=3,channels=5)"}, {"float32[5*,6,7,1]"}},
    {{"conv2d(kernel=3,channels=33)"}, {"float32[2*,5,5,16]"}},
    {{"conv2d(kernel=3,padding=0,channels=16)"}, {"float32[3*,7,6,3]"}},
    {{"conv2d(kernel=3,stride=2,channels=16,bias=false)"}, {"float32[5*,5,8,5]"}},
    {{"conv2d(kernel=3,stride=2,channels=64,bias=false)"}, {"float32[5*,2,2,16]"}},
    {{"conv2d(kernel=3,channels=33,bias=false)"}, {"float32[5*,1,1,33]"}},
    {{"conv2d(kernel=3,channels=80,bias=false)"}, {"float32[16*,2,2,33]"}},
    {{"conv2d(kernel=3,stride=3,padding=2,channels=3)"}, {"float32[2*,7,5,3]"}},
    {{"conv2d(kernel=3,stride=5,padding=0,channels=4)"}, {"float32[2*,9,8,2]"}},
    {{"conv2d(kernel=5,channels=16)"}, {"float32[2*,6,5,3]"}},
    {{"conv2d(kernel=5,stride=2,padding=4,channels=3)"}, {"float32[1*,3,6,5]"}},
    {{"conv2d(kernel=7,stride=2,channels=33,bias=false)"}, {"float32[3*,9,10,3]"}},
    {{"conv2d(kernel=7,channels=1)"}, {"float32[1*,2,2,1]"}},
    {{"conv2d(kernel=3,channels=32)"}, {"float32[3*,17,20,16]"}},  // several threads and chunks
    // Windows of other forms, groups, and the layout of PyTorch.
    {{"conv2d(kernel=3,1,channels=5)", "conv2d(kernel=2,5,stride=1,3,padding=0,2,channels=18)",
      "conv2d(kernel=3,stride=2,1,padding=1,0,2,3,channels=4,layout=oihw)",
      "conv2d(kernel=1,padding=2,channels=3)", "conv2d(kernel=1,channels=20,layout=oihw)"},
     {"float32[3*,7,6,5]", "float32[1*,4,9,1]"}},
    {{"conv2d(kernel=3,dilation=2,channels=17)",
      "conv2d(kernel=3,2,dilation=3,2,stride=2,channels=4)",
      "conv2d(kernel=3,dilation=2,4,stride=4,2,padding=3,channels=6,layout=oihw)"},
     {"float32[3*,9,8,6]"}},
    {{"conv2d(kernel=3,groups=2,channels=6)", "conv2d(kernel=3,groups=2,channels=34,layout=oihw)",
      "conv2d(kernel=3,groups=2,channels=64,stride=2)",
      "conv2d(kernel=2,3,groups=2,channels=80,dilation=1,2,bias=false)",
      "conv2d(kernel=1,groups=4,channels=12)"},
     {"float32[3*,7,6,8]", "float32[2*,5,6,4]"}},
    {{"conv2d(kernel=3,groups=18,channels=18)", "conv2d(kernel=3,groups=18,channels=36)",
      "conv2d(kernel=5,2,stride=2,1,groups=18,channels=18,layout=oihw,bias=false)",
      "conv2d(kernel=3,dilation=2,stride=2,groups=18,channels=18)",
      "conv2d(kernel=3,groups=9,channels=9,layout=oihw)"},
     {"float32[3*,7,9,18]"}},
    {{"conv2d(kernel=3,groups=80,channels=80,layout=oihw)"}, {"float32[5*,17,20,80]"}},
    {{"conv_transpose2d(kernel=2,stride=2,channels=5)", "conv_transpose2d(kernel=1,channels=3)",
      "conv_transpose2d(kernel=3,padding=1,channels=16,bias=false)",
      "conv_transpose2d(kernel=4,3,stride=2,padding=1,0,channels=2,groups=2)",
      "conv_transpose2d(kernel=3,stride=2,padding=1,output_padding=1,channels=33)",
      "conv_transpose2d(kernel=2,stride=1,3,dilation=3,2,output_padding=2,0,channels=18,groups=6)",
      "conv_transpose2d(kernel=3,stride=3,2,padding=1,0,0,1,channels=6,groups=6)"},
     {"float32[3*,4,5,6]", "float32[5*,1,2,18]"}},
    {{"conv_transpose2d(kernel=4,stride=2,padding=1,channels=24)"}, {"float32[5*,17,20,16]"}},
    {{"max_pool(kernel=2,3,stride=1,2,padding=1,0,0,1)",
      "avg_pool(kernel=2,3,stride=1,2,padding=1,0,0,1)", "max_pool(kernel=2,stride=3,ceil=true)",
      "max_pool(kernel=8,3,stride=4,ceil=true)", "avg_pool(kernel=2,stride=3,ceil=true)",
      "avg_pool(kernel=3,stride=2,padding=1,ceil=true)",
      "avg_pool(kernel=3,2,stride=2,padding=1,ceil=true,count_padding=false)",
      "avg_pool(kernel=3,padding=1,count_padding=false)",
      "max_pool(kernel=3,stride=2,padding=1,ceil=true)", "max_pool(kernel=2,dilation=2,stride=1)",
      "max_pool(kernel=2,3,dilation=3,2,stride=2,padding=1)"},
     {"float32[3*,8,7,33]", "float32[2*,5,6,3]"}},
    {{"max_pool(kernel=17,stride=1)", "avg_pool(kernel=17,stride=1)"}, {"float32[2*,18,17,3]"}},
    {{"resize", "resize(mode=bilinear)", "resize(size=5,mode=bilinear)", "resize(size=3,11)",
      "resize(scale=0.5,mode=bilinear)", "resize(scale=1.5,coordinates=asymmetric)",
      "resize(size=9,2,mode=bilinear,coordinates=align_corners)",
      "resize(size=1,13,coordinates=align_corners)",
      "resize(size=7,8,mode=bilinear,coordinates=asymmetric)"},
     {"float32[3*,5,4,18]", "float32[2*,2,9,1]"}},
    {{"group_norm(groups=1,epsilon=0.1)", "group_norm(groups=3,epsilon=0.1)"},
     {"float32[5*,6]", "float32[3*,7,6]"}},
    {{"group_norm(groups=4,epsilon=1e-3)", "group_norm(groups=20,epsilon=1e-3)",
      "group_norm(groups=1)"},
     {"float32[5*,9,11,20]", "float32[40*,16,8,20]"}},
    {{"max_pool(kernel=1)", "avg_pool(kernel=1)"}, {"float32[1*,1,1,1]"}},
    {{"max_pool(kernel=2)", "avg_pool(kernel=2)"},
     {"float32[5*,4,6,16]", "float32[2*,5,7,5]", "float32[16*,20,20,8]"}},
    {{"max_pool(kernel=3,stride=2,padding=1)", "avg_pool(kernel=3,stride=2,padding=1)"},
     {"float32[3*,8,7,33]", "float32[16*,20,20,16]"}},
    {{"max_pool(kernel=3,stride=1,padding=1)", "avg_pool(kernel=3,stride=1,padding=1)"},
     {"float32[2*,5,4,3]"}},
    {{"max_pool(kernel=3,padding=2)", "avg_pool(kernel=3,padding=2)"}, {"float32[2*,7,5,16]"}},
    {{"max_pool(kernel=2,stride=3)", "avg_pool(kernel=2,stride=3)"}, {"float32[2*,8,6,17]"}},
    {{"max_pool(kernel=5,stride=2,padding=2)", "avg_pool(kernel=5,stride=2,padding=2)"},
     {"float32[2*,3,2,4]"}},
    {{"global_avg_pool", "global_max_pool"},
     {"float32[3*,5,7]", "float32[5*,4,3,33]", "float32[70*,8,8,16]"}},
    {{"to_channels_last", "to_channels_first"},
     {"float32[3*,1,4,5]", "float32[5*,3,5,7]", "float32[9*,33,16,16]"}},
};

}  // namespace

std::vector<OpSample> FormulaCases() {
  std::vector<OpSample> samples = ArrayCases();
  for (const auto& cases : kFormulaCases) {
    for (const std::string& op : cases.ops) {
      for (const std::string& inputs : cases.inputs) {
        const bool adds = op.starts_with("add") || op == "accumulate";  // two of the same
        samples.push_back(Sample(op + "=" + inputs + (adds ? "," + inputs : "")));
      }
    }
  }
  return samples;
}

}  // namespace engine::test
