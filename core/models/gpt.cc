#include <cmath>

#include "core/models/model.h"

namespace engine {
namespace {

// Standard deviations of GPT-2 (Radford et al. 2019, section 2.3): 0.02, and for the layers that
// write into the residual stream 0.02 / sqrt(number of such layers).
constexpr double kInitScale = 0.02;

// Where a library has an op for what follows each other anyway (an addition and the norm of the
// sum; two products and the GELU between them), that op is taken; parameters have the same names.
class GptBuilder {
 public:
  // `x`: (B, T, C).
  GptBuilder(GraphBuilder& builder, const config::Gpt& gpt, ValueId x)
      : builder_(builder),
        gpt_(gpt),
        residual_scale_(kInitScale / std::sqrt(2.0 * gpt.layers())),
        fuses_norm_(builder.Offers("add_layer_norm")),
        fuses_mlp_(builder.Offers("mlp", {Int("units", 1)})),
        x_(x) {}

  // Both halves are pre-norm: x + f(norm(x)).
  Status Block(int32_t index) {
    const std::string name = "block" + std::to_string(index);
    ENGINE_ASSIGN_OR_RETURN(ValueId h, Norm(name + ".norm1"));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".attn.qkv", h, 3 * gpt_.width(), kInitScale));
    ENGINE_ASSIGN_OR_RETURN(
        h, builder_.Apply(name + ".attn", "attention", {h}, {Int("heads", gpt_.heads())}));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".attn.proj", h, gpt_.width(), residual_scale_));
    Add(name + ".add1", h);
    ENGINE_ASSIGN_OR_RETURN(h, Norm(name + ".norm2"));
    ENGINE_ASSIGN_OR_RETURN(h, Mlp(name + ".mlp", h));
    Add(name + ".add2", h);
    return {};
  }

  // Of the sum of all so far.
  Result<ValueId> Norm(const std::string& name) {
    if (branch_ == kNone) return builder_.Apply(name, "layer_norm", {x_});
    if (fuses_norm_) {
      ENGINE_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs,
                              builder_.ApplyAll(name, "add_layer_norm", {x_, branch_}));
      x_ = outputs[0];
      branch_ = kNone;
      return outputs[1];
    }
    ENGINE_ASSIGN_OR_RETURN(x_, builder_.Apply(add_name_, "add", {x_, branch_}));
    branch_ = kNone;
    return builder_.Apply(name, "layer_norm", {x_});
  }

 private:
  // Added by the norm that follows.
  void Add(std::string name, ValueId branch) {
    add_name_ = std::move(name);
    branch_ = branch;
  }

  Result<ValueId> Linear(const std::string& name, ValueId x, int64_t units, double init_scale) {
    return builder_.Apply(name, "linear", {x},
                          {Int("units", units), Float("init_scale", init_scale)});
  }

  Result<ValueId> Mlp(const std::string& name, ValueId x) {
    const int64_t units = 4 * gpt_.width();
    if (fuses_mlp_) {
      return builder_.Apply(name, "mlp", {x},
                            {Int("units", units), Float("init_scale", kInitScale),
                             Float("proj_init_scale", residual_scale_)});
    }
    ENGINE_ASSIGN_OR_RETURN(x, Linear(name + ".fc", x, units, kInitScale));
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply(name + ".gelu", "gelu", {x}));
    return Linear(name + ".proj", x, gpt_.width(), residual_scale_);
  }

  GraphBuilder& builder_;
  const config::Gpt& gpt_;
  const double residual_scale_;
  const bool fuses_norm_, fuses_mlp_;
  ValueId x_;
  ValueId branch_ = kNone;  // still to be added to x_, by a layer called add_name_
  std::string add_name_;
};

}  // namespace

Result<ValueId> BuildGpt(GraphBuilder& builder, const config::Gpt& gpt, ValueId tokens,
                         int64_t classes) {
  const TensorSpec& spec = builder.spec(tokens);
  if (spec.dtype != DType::kInt32 || spec.shape.ndim != 2) {
    return Status::Error(StatusCode::kConfig,
                         "model.gpt reads tokens: it needs data { text { ... } }");
  }
  if (gpt.layers() < 1 || gpt.width() < 1 || gpt.heads() < 1 || gpt.width() % gpt.heads() != 0) {
    return Status::Error(
        StatusCode::kConfig,
        "model.gpt: width %d cannot be split over %d heads in %d layers; all must be "
        "positive and width a multiple of heads",
        gpt.width(), gpt.heads(), gpt.layers());
  }
  const int64_t context = spec.shape[1];
  ENGINE_ASSIGN_OR_RETURN(
      ValueId x, builder.Apply("embedding", "embedding", {tokens},
                               {Int("vocabulary", classes), Int("width", gpt.width()),
                                Int("positions", context), Float("init_scale", kInitScale)},
                               {.row_table = kEmbeddingTable}));
  GptBuilder blocks(builder, gpt, x);
  for (int32_t i = 0; i < gpt.layers(); ++i) ENGINE_RETURN_IF_ERROR(blocks.Block(i));
  ENGINE_ASSIGN_OR_RETURN(x, blocks.Norm("norm"));
  if (!gpt.tied()) {
    return builder.Apply(
        "head", "linear", {x},
        {Int("units", classes), Bool("bias", false), Float("init_scale", kInitScale)});
  }
  ENGINE_ASSIGN_OR_RETURN(const ValueId table, builder.ParameterValue("embedding.weight"));
  return builder.Apply("head", "tied_linear", {x, table});
}

}  // namespace engine
