#include <cmath>

#include "core/models/model.h"

namespace engine {
namespace {

// Standard deviations of GPT-2 (Radford et al. 2019, section 2.3): 0.02, and for the layers that
// write into the residual stream 0.02 / sqrt(number of such layers).
constexpr double kInitScale = 0.02;

class GptBuilder {
 public:
  GptBuilder(GraphBuilder& builder, const config::Gpt& gpt)
      : builder_(builder), gpt_(gpt), residual_scale_(kInitScale / std::sqrt(2.0 * gpt.layers())) {}

  // x: (B, T, C). Both halves are pre-norm: x + f(norm(x)).
  Result<ValueId> Block(int32_t index, ValueId x) {
    const std::string name = "block" + std::to_string(index);
    ENGINE_ASSIGN_OR_RETURN(ValueId h, builder_.Apply(name + ".norm1", "layer_norm", {x}));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".attn.qkv", h, 3 * gpt_.width(), kInitScale));
    ENGINE_ASSIGN_OR_RETURN(
        h, builder_.Apply(name + ".attn", "attention", {h}, {Int("heads", gpt_.heads())}));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".attn.proj", h, gpt_.width(), residual_scale_));
    ENGINE_ASSIGN_OR_RETURN(x, builder_.Apply(name + ".add1", "add", {x, h}));
    ENGINE_ASSIGN_OR_RETURN(h, builder_.Apply(name + ".norm2", "layer_norm", {x}));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".mlp.fc", h, 4 * gpt_.width(), kInitScale));
    ENGINE_ASSIGN_OR_RETURN(h, builder_.Apply(name + ".mlp.gelu", "gelu", {h}));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".mlp.proj", h, gpt_.width(), residual_scale_));
    return builder_.Apply(name + ".add2", "add", {x, h});
  }

 private:
  Result<ValueId> Linear(const std::string& name, ValueId x, int64_t units, double init_scale) {
    return builder_.Apply(name, "linear", {x},
                          {Int("units", units), Float("init_scale", init_scale)});
  }

  GraphBuilder& builder_;
  const config::Gpt& gpt_;
  const double residual_scale_;
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
  GptBuilder blocks(builder, gpt);
  ENGINE_ASSIGN_OR_RETURN(
      ValueId x, builder.Apply("embedding", "embedding", {tokens},
                               {Int("vocabulary", classes), Int("width", gpt.width()),
                                Int("positions", context), Float("init_scale", kInitScale)},
                               {.row_table = kEmbeddingTable}));
  for (int32_t i = 0; i < gpt.layers(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(x, blocks.Block(i, x));
  }
  ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("norm", "layer_norm", {x}));
  if (!gpt.tied()) {
    return builder.Apply(
        "head", "linear", {x},
        {Int("units", classes), Bool("bias", false), Float("init_scale", kInitScale)});
  }
  ENGINE_ASSIGN_OR_RETURN(const ValueId table, builder.ParameterValue("embedding.weight"));
  return builder.Apply("head", "tied_linear", {x, table});
}

}  // namespace engine
