// onnx: a model from a file, as torch.onnx.export writes it, with the weights that are in it.
#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ext/initial_values.h"
#include "kit/loss_model.h"
#include "lowering.h"

namespace engine::onnx {
namespace {

// The batch that shape arithmetic counts on where the file names none. A number that no model has
// among its other extents: so it is told apart where it can only be told by its size.
constexpr int64_t kSymbolicBatch = 11;

class Onnx final : public ModelBase, public InitialValuesBase {
 public:
  Onnx(std::unique_ptr<ModelFile> file, Graph graph, const Options& options)
      : file_(std::move(file)),
        graph_(std::move(graph)),
        sync_batch_norm_(options.Bool("sync_batch_norm")),
        criterion_(options) {}

  // What a damaged file makes the standard library throw ends here.
  Status Build(ModelBuilder& builder) const noexcept override {
    try {
      return LowerAll(builder).WithContext("%s", file_->path().c_str());
    } catch (const std::exception& error) {
      return Status::Error(StatusCode::kBadData, "the file is damaged, or too large: %s",
                           error.what());
    }
  }

  Status LowerAll(ModelBuilder& builder) const {
    ENGINE_ASSIGN_OR_RETURN(const int64_t samples, Batch());
    Lowering lowering(builder, *file_, graph_, samples, sync_batch_norm_);
    ENGINE_RETURN_IF_ERROR(SetInputs(lowering, builder));
    // From the front, so that no handler has to go deep for its inputs: but only nodes that can be in
    // no pattern.
    static const std::set<std::string> kAnchors = {
        "Conv", "BatchNormalization", "Gemm", "Relu", "Concat", "MaxPool", "LayerNormalization"};
    for (const Node& node : graph_.nodes()) {
      if (!kAnchors.contains(node.type()) || !graph_.IsNeeded(node)) continue;
      ENGINE_RETURN_IF_ERROR(lowering.Get(node.output(0)).status());
    }
    return SetOutputs(lowering, builder);
  }

  void* Query(std::string_view id) noexcept override { return Offer<InitialValues>(id, this); }

  uint32_t Has(std::string_view parameter) const noexcept override {
    const std::string name(parameter);
    const bool own = sources_.contains(name) || file_->FindInitializer(name) != nullptr;
    return own || criterion_.Has(parameter) ? 1 : 0;
  }

  Status Read(std::string_view parameter, std::span<float> values) const noexcept override {
    const std::string name(parameter);
    if (criterion_.Has(parameter)) {
      criterion_.Read(values);
      return {};
    }
    const auto found = sources_.find(name);
    if (found == sources_.end()) return file_->Read(*file_->FindInitializer(name), values);
    if (found->second.constant == nullptr) return file_->Read(*found->second.tensor, values);
    std::ranges::transform(found->second.constant->values, values.begin(),
                           [](double value) { return static_cast<float>(value); });
    return {};
  }

 private:
  // Of the first input: what the file was traced with, or a stand-in for any.
  Result<int64_t> Batch() const {
    if (graph_.inputs().empty()) {
      return Status::Error(StatusCode::kBadData, "the model has no input");
    }
    const auto& shape = graph_.inputs()[0]->type().tensor_type().shape();
    if (shape.dim_size() == 0) {
      return Status::Error(StatusCode::kPlugin, "input '%s' has no batch dimension",
                           graph_.inputs()[0]->name().c_str());
    }
    return shape.dim(0).dim_value() > 0 ? shape.dim(0).dim_value() : kSymbolicBatch;
  }

  // Inputs of the file are those of a sample, in order; a batch is in front of each.
  Status SetInputs(Lowering& lowering, const ModelBuilder& builder) const {
    const ModelData data = builder.data();
    const auto& inputs = graph_.inputs();
    if (inputs.size() != data.inputs.size()) {
      return Status::Error(StatusCode::kConfig, "the model has %zu inputs, a sample %zu",
                           inputs.size(), data.inputs.size());
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto value = static_cast<ModelValue>(i);
      const Shape given = builder.Spec(value).shape;
      Dims shape = {lowering.samples()};
      shape.insert(shape.end(), given.dims + 1, given.dims + given.ndim);
      ENGINE_RETURN_IF_ERROR(CheckInput(*inputs[i], data.inputs[i], shape));
      lowering.Set(inputs[i]->name(),
                   {.engine = value, .layout = Layout::RowMajor(shape, true, lowering.samples())});
    }
    return {};
  }

  // kConfig with both shapes unless the data's is that of the file, where that names extents.
  Status CheckInput(const proto::ValueInfoProto& input, const SampleTensor& tensor,
                    const Dims& shape) const {
    const auto& type = input.type().tensor_type();
    bool fits = type.shape().dim_size() == static_cast<int>(shape.size());
    std::string wanted, got;
    for (int i = 1; i < type.shape().dim_size(); ++i) {
      const auto& dim = type.shape().dim(i);
      const bool free = dim.dim_value() <= 0;
      fits = fits && (free || dim.dim_value() == shape[static_cast<size_t>(i)]);
      wanted += (i > 1 ? ", " : "") + (free ? "any" : std::to_string(dim.dim_value()));
    }
    for (size_t i = 1; i < shape.size(); ++i) got += (i > 1 ? ", " : "") + std::to_string(shape[i]);
    if (IsFloat(type.elem_type()) != (tensor.dtype == DType::kFloat32)) {
      fits = false;
      wanted += IsFloat(type.elem_type()) ? " of numbers with a fraction" : " of integers";
      got += tensor.dtype == DType::kFloat32 ? " of numbers with a fraction" : " of integers";
    }
    if (fits) return {};
    return Status::Error(StatusCode::kConfig,
                         "input '%s' of the model has samples of (%s), the data of (%s): choose "
                         "data of that shape, or export the model for this one",
                         input.name().c_str(), wanted.c_str(), got.c_str());
  }

  // The first outputs of the file are predictions of the targets of the data, in order; all can be read.
  Status SetOutputs(Lowering& lowering, ModelBuilder& builder) const {
    const std::vector<ModelValue> targets = kit::Criterion::Targets(builder.data());
    const auto& outputs = file_->graph().output();
    std::vector<ModelValue> predictions;
    for (int i = 0; i < outputs.size(); ++i) {
      ENGINE_ASSIGN_OR_RETURN(const Value value, lowering.Get(outputs[i].name()));
      const auto at = static_cast<size_t>(i);
      const SampleTensor* const target =
          at < targets.size()
              ? &builder.data()
                     .targets[static_cast<size_t>(targets[at]) - builder.data().inputs.size()]
              : nullptr;
      ENGINE_ASSIGN_OR_RETURN(const ModelValue output, Predicted(lowering, value, target));
      if (target != nullptr) predictions.push_back(output);
      ENGINE_RETURN_IF_ERROR(builder.Output(i == 0 ? "logits" : outputs[i].name(), output));
    }
    sources_ = lowering.sources();
    return builder.data().with_loss == 0 ? Status() : criterion_.Add(builder, predictions);
  }

  // In the order of its dimensions, but with classes last: PyTorch has the classes of a plane of
  // targets in dimension 1. Positions of a sample that the file calls rows of a batch stay positions.
  Result<ModelValue> Predicted(Lowering& lowering, const Value& value,
                               const SampleTensor* target) const {
    Layout layout = value.layout;
    const Dims shape = value.Shape();
    if (target != nullptr && shape.size() > 2 && target->classes > 0 &&
        shape[1] == target->classes &&
        static_cast<int32_t>(shape.size()) == target->shape.ndim + 2) {
      std::vector<int> dim = layout.dims[1];
      layout.dims.erase(layout.dims.begin() + 1);
      layout.dims.push_back(std::move(dim));
    }
    Groups groups;
    for (size_t i = 0; i < layout.dims.size(); ++i) {
      if (i > 0 || layout.dims[0].size() < 2) {
        groups.push_back(layout.dims[i]);
        continue;
      }
      for (const int axis : layout.dims[0]) groups.push_back({axis});
    }
    return lowering.Arrange(graph_.nodes().back(), value, groups);
  }

  const std::unique_ptr<ModelFile> file_;
  const Graph graph_;
  const bool sync_batch_norm_;
  const kit::Criterion criterion_;
  mutable std::map<std::string, Source> sources_;  // of the graph that was built last
};

StatusValue Create(Host& /*host*/, const Options& options, Object** out) noexcept {
  auto file = ModelFile::Open(std::string(options.String("path")));
  if (!file.ok()) return file.status();
  auto graph = Graph::Create(**file, options.String("constants"));
  if (!graph.ok()) return graph.status();
  return kit::Make<Onnx>(out, std::move(*file), std::move(*graph), options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kModel, "onnx", "1.0.0",
    "a model from an ONNX file, as torch.onnx.export writes it", Create,
    kit::WithLoss(std::array{
        kit::PathOption("path", kit::Path::kRequired, "the file, with the weights to begin with"),
        kit::StringOption("constants",
                          "*inv_freq,*mask,*.cos,*.sin,*_cos,*_sin,*cos_cached,*sin_cached",
                          "names of buffers: floating-point initialisers that are not trained; "
                          "'*' is any text"),
        kit::BoolOption("sync_batch_norm", "true",
                        "statistics over the batch of all ranks, so that their number makes no "
                        "difference")}));

}  // namespace engine::onnx
