// gpt: GPT-2 (Radford et al. 2019) over the tokens of the data: learned positions, layer norm before
// each block, GELU.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kit/loss_model.h"
#include "kit/model.h"

namespace engine::gpt {
namespace {

using kit::Float;
using kit::Int;

// Standard deviations of GPT-2 (section 2.3): 0.02, and for the layers that write into the residual
// stream 0.02 / sqrt(number of such layers).
constexpr double kInitScale = 0.02;

struct Settings {
  int64_t layers, width, heads;
};

// Where a library has an op for what follows each other anyway (an addition and the norm of the
// sum; two products and the GELU between them), that op is taken; parameters have the same names.
class Blocks {
 public:
  // `x`: (B, T, C).
  Blocks(ModelBuilder& builder, const Settings& gpt, ModelValue x)
      : builder_(builder),
        gpt_(gpt),
        residual_scale_(kInitScale / std::sqrt(2.0 * static_cast<double>(gpt.layers))),
        fuses_norm_(builder.Offers("add_layer_norm", {})),
        fuses_mlp_(builder.Offers("mlp", std::vector{Int("units", 1)})),
        x_(x) {}

  // Both halves are pre-norm: x + f(norm(x)).
  Status Add(int64_t index) {
    const std::string name = "block" + std::to_string(index);
    ENGINE_ASSIGN_OR_RETURN(ModelValue h, Norm(name + ".norm1"));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".attn.qkv", h, 3 * gpt_.width, kInitScale));
    ENGINE_ASSIGN_OR_RETURN(
        h, kit::Apply(builder_, name + ".attn", "attention", {h}, {Int("heads", gpt_.heads)}));
    ENGINE_ASSIGN_OR_RETURN(h, Linear(name + ".attn.proj", h, gpt_.width, residual_scale_));
    AddLater(name + ".add1", h);
    ENGINE_ASSIGN_OR_RETURN(h, Norm(name + ".norm2"));
    ENGINE_ASSIGN_OR_RETURN(h, Mlp(name + ".mlp", h));
    AddLater(name + ".add2", h);
    return {};
  }

  // Of the sum of all so far.
  Result<ModelValue> Norm(const std::string& name) {
    if (add_name_.empty()) return kit::Apply(builder_, name, "layer_norm", {x_});
    const std::string add_name = std::exchange(add_name_, "");
    if (fuses_norm_) {
      ModelValue outputs[2];
      ENGINE_RETURN_IF_ERROR(builder_.Apply({.op = "add_layer_norm", .name = name},
                                            std::vector{x_, branch_}, outputs));
      x_ = outputs[0];
      return outputs[1];
    }
    ENGINE_ASSIGN_OR_RETURN(x_, kit::Apply(builder_, add_name, "add", {x_, branch_}));
    return kit::Apply(builder_, name, "layer_norm", {x_});
  }

 private:
  // By the norm that follows.
  void AddLater(std::string name, ModelValue branch) {
    add_name_ = std::move(name);
    branch_ = branch;
  }

  Result<ModelValue> Linear(const std::string& name, ModelValue x, int64_t units, double scale) {
    return kit::Apply(builder_, name, "linear", {x},
                      {Int("units", units), Float("init_scale", scale)});
  }

  Result<ModelValue> Mlp(const std::string& name, ModelValue x) {
    const int64_t units = 4 * gpt_.width;
    if (fuses_mlp_) {
      return kit::Apply(builder_, name, "mlp", {x},
                        {Int("units", units), Float("init_scale", kInitScale),
                         Float("proj_init_scale", residual_scale_)});
    }
    ENGINE_ASSIGN_OR_RETURN(x, Linear(name + ".fc", x, units, kInitScale));
    ENGINE_ASSIGN_OR_RETURN(x, kit::Apply(builder_, name + ".gelu", "gelu", {x}));
    return Linear(name + ".proj", x, gpt_.width, residual_scale_);
  }

  ModelBuilder& builder_;
  const Settings gpt_;
  const double residual_scale_;
  const bool fuses_norm_, fuses_mlp_;
  ModelValue x_;
  ModelValue branch_ =
      0;  // still to be added to x_, by a layer called add_name_, unless that is ""
  std::string add_name_;
};

class Gpt final : public kit::LossModel {
 public:
  explicit Gpt(const Options& options)
      : LossModel(options),
        settings_{options.Int("layers"), options.Int("width"), options.Int("heads")},
        tied_(options.Bool("tied")) {}

  Result<ModelValue> Predict(ModelBuilder& builder) const override {
    const TensorSpec tokens = builder.Spec(0);
    if (tokens.dtype != DType::kInt32 || tokens.shape.ndim != 2) {
      return Status::Error(StatusCode::kConfig,
                           "model.gpt reads tokens: it needs data { text { ... } }");
    }
    ENGINE_ASSIGN_OR_RETURN(const int64_t classes, OutputUnits(builder));
    ENGINE_ASSIGN_OR_RETURN(
        const ModelValue embedded,
        kit::Apply(builder, "embedding", "embedding", {0},
                   {Int("vocabulary", classes), Int("width", settings_.width),
                    Int("positions", tokens.shape[1]), Float("init_scale", kInitScale)}));
    Blocks blocks(builder, settings_, embedded);
    for (int64_t i = 0; i < settings_.layers; ++i) ENGINE_RETURN_IF_ERROR(blocks.Add(i));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue x, blocks.Norm("norm"));
    return Head(builder, x, classes);
  }

 private:
  Result<ModelValue> Head(ModelBuilder& builder, ModelValue x, int64_t classes) const {
    if (!tied_) {
      return kit::Apply(
          builder, "head", "linear", {x},
          {Int("units", classes), kit::Bool("bias", false), Float("init_scale", kInitScale)});
    }
    ModelValue table = 0;
    ENGINE_RETURN_IF_ERROR(builder.Parameter("embedding.weight", nullptr, &table));
    return kit::Apply(builder, "head", "tied_linear", {x, table});
  }

  const Settings settings_;
  const bool tied_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const int64_t width = options.Int("width"), heads = options.Int("heads");
  if (width % heads == 0) return kit::Create<Gpt>(host, options, out);
  return Status::Error(StatusCode::kConfig,
                       "model.gpt: the width %lld must be a multiple of the number of heads, %lld",
                       static_cast<long long>(width), static_cast<long long>(heads));
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kModel, "gpt", "1.0.0", "GPT-2 over the tokens of the data", Create,
    kit::WithLoss(
        std::array{kit::IntOption("layers", "4", 1, 1024, "blocks of attention and mlp"),
                   kit::IntOption("width", "128", 1, 1 << 20, "of a position: a multiple of heads"),
                   kit::IntOption("heads", "4", 1, 1 << 16, "of attention"),
                   kit::BoolOption("tied", "true",
                                   "the head multiplies with the token table, as in GPT-2; false "
                                   "gives it a matrix of its own")}));

}  // namespace engine::gpt
