#include "app/weights/export_model.h"

#include <algorithm>
#include <limits>
#include <set>

#include "app/checkpoint/atomic_file.h"
#include "app/checkpoint/checkpoint.h"
#include "app/weights/onnx_writer.h"
#include "app/weights/torch_layout.h"

namespace engine::weights {
namespace {

// LayerNormalization came with 17; version 8 of the format was the one of that time.
constexpr int64_t kOpset = 17, kFormat = 8;

void Declare(onnx::ValueInfoProto* info, const std::string& name, const TensorSpec& spec,
             bool any_batch) {
  info->set_name(name);
  auto* tensor = info->mutable_type()->mutable_tensor_type();
  const bool floats = spec.dtype == DType::kFloat32;
  tensor->set_elem_type(floats ? onnx::TensorProto::FLOAT : onnx::TensorProto::INT32);
  for (int32_t i = 0; i < spec.shape.ndim; ++i) {
    auto* dim = tensor->mutable_shape()->add_dim();
    if (i == 0 && spec.batched != 0 && any_batch) {
      dim->set_dim_param("batch");
    } else {
      dim->set_dim_value(spec.shape[i]);
    }
  }
}

// A convolution whose output only a batch norm reads can do it itself, if its weight is its own and
// (out, in, rows, columns) in PyTorch.
void FindFolds(const TrainedGraph& model, OnnxWriter* onnx) {
  const graph::Graph& graph = model.graph;
  const auto readers = FindReaders(graph);
  for (const graph::Node& conv : graph.nodes) {
    if (conv.op_name != "conv2d" || readers[conv.outputs[0]].size() != 1) continue;
    const bool hwio = model.ops.Of(conv).Word("layout", "hwio") == "hwio";
    if (hwio && conv.signature.parameter_count == 0) continue;
    const graph::Node& norm = graph.nodes[readers[conv.outputs[0]][0]];
    const auto is_own = [&](graph::ValueId value) {
      return graph.values[value].parameter != graph::kNone && readers[value].size() == 1;
    };
    if (norm.op_name != "batch_norm" ||
        !std::all_of(conv.inputs.begin() + 1, conv.inputs.end(), is_own)) {
      continue;
    }
    onnx->folded[&conv] = {&norm, model.ops.Of(norm).Float("epsilon", 1e-5)};
  }
}

// Of an op that the table does not have: a node in the domain of its plugin, with its attributes.
void WriteForeign(const NodeCall& call, const std::string& domain) {
  std::vector<std::string> inputs;
  for (size_t i = 0; i < call.node.inputs.size(); ++i) inputs.push_back(call.In(i));
  std::vector<OnnxAttribute> attributes;
  for (const plugin::OwnedOption& option : call.attributes.all()) {
    const char* const name = option.name.c_str();
    switch (option.type) {
      case OptionType::kInt:
      case OptionType::kBool:
        attributes.emplace_back(name, option.integer);
        break;
      case OptionType::kFloat:
        attributes.emplace_back(name, static_cast<float>(option.number));
        break;
      case OptionType::kInts:
        attributes.emplace_back(name, option.integers);
        break;
      default:
        attributes.emplace_back(name, option.string);
    }
  }
  const auto outputs = call.onnx.Add(call.node.op_name.c_str(), call.node.outputs.size(), inputs,
                                     attributes, domain);
  for (size_t i = 0; i < outputs.size(); ++i) call.Out(outputs[i], Layout::kOurs, i);
}

// The notes of ExportOnnx.
std::vector<std::string> WriteNodes(const TrainedGraph& model, OnnxWriter* onnx) {
  std::vector<std::string> notes;
  std::set<std::string> domains;
  for (size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const graph::Node& node = model.graph.nodes[n];
    onnx->Begin(node.name);
    const OpWriter* const writer = FindOpWriter(node.op_name);
    const NodeCall call{*onnx, model.graph,        static_cast<graph::NodeId>(n),
                        node,  model.ops.Of(node), writer == nullptr ? "" : writer->type};
    if (writer != nullptr) {
      writer->write(call);
      continue;
    }
    const std::string domain(model.ops.PluginOf(node));
    WriteForeign(call, domain);
    notes.push_back("layer '" + node.name + "': ONNX has no op '" + node.op_name +
                    "': its node is of the domain '" + domain +
                    "', which a runtime must be taught");
    if (!domains.insert(domain).second) continue;
    auto* opset = onnx->model.add_opset_import();
    opset->set_domain(domain);
    opset->set_version(1);
  }
  return notes;
}

}  // namespace

Result<std::vector<const float*>> ValuesOf(const checkpoint::SafetensorsFile& file,
                                           const graph::Graph& graph) {
  std::vector<const float*> values;
  for (const graph::Parameter& parameter : graph.parameters) {
    if (parameter.constant()) {
      values.push_back(parameter.values.data());
      continue;
    }
    ENGINE_ASSIGN_OR_RETURN(const TensorView stored,
                            checkpoint::FindLike(file, parameter.name, parameter.shape));
    values.push_back(stored.f32());
  }
  return values;
}

Status ExportSafetensors(const std::string& path, const TrainedGraph& model) {
  const std::vector<TorchLayout> layouts = TorchLayouts(model.graph, model.ops);
  std::vector<std::vector<float>> values;  // whose memory does not move with them
  std::vector<checkpoint::NamedTensor> tensors;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (model.graph.parameters[i].constant()) continue;
    values.push_back(ToTorch(layouts[i], model.values[i]));
    tensors.push_back({model.graph.parameters[i].name,
                       {values.back().data(), layouts[i].torch, DType::kFloat32}});
  }
  return checkpoint::WriteSafetensors(path, tensors, {{"format", "pt"}});
}

Result<std::vector<std::string>> ExportOnnx(const std::string& path, const TrainedGraph& model,
                                            const OnnxOptions& options) {
  const graph::Graph& graph = model.graph;
  int64_t bytes = 0;
  for (const graph::Parameter& parameter : graph.parameters) bytes += parameter.shape.Count() * 4;
  if (bytes > std::numeric_limits<int32_t>::max() - (1 << 24)) {
    return Status::Error(StatusCode::kConfig,
                         "%s: weights of %lld bytes are more than the 2 GiB that a file of ONNX "
                         "holds; use --safetensors",
                         path.c_str(), static_cast<long long>(bytes));
  }
  OnnxWriter onnx(graph, model.ops, model.values);
  onnx.model.set_ir_version(kFormat);
  onnx.model.set_producer_name("engine");
  onnx.model.mutable_graph()->set_name(options.name);
  onnx.model.add_opset_import()->set_version(kOpset);
  std::vector<graph::ValueId> inputs = {graph.input};
  inputs.insert(inputs.end(), graph.others.begin(), graph.others.end());
  for (const graph::ValueId input : inputs) {
    const graph::Value& value = graph.values[input];
    Declare(onnx.model.mutable_graph()->add_input(), value.name, value.spec, options.any_batch);
    onnx.Set(input, Layout::kOurs, value.name);
  }
  if (options.fold_batch_norm) FindFolds(model, &onnx);
  std::vector<std::string> notes = WriteNodes(model, &onnx);
  for (const graph::GraphOutput& output : graph.outputs) {
    const TensorSpec& spec = graph.values[output.value].spec;
    Declare(onnx.model.mutable_graph()->add_output(), output.name, spec, options.any_batch);
    const std::string name = onnx.Get(output.value, Layout::kOurs);
    onnx::NodeProto* last = onnx.model.mutable_graph()->add_node();
    last->add_input(name);
    last->set_op_type("Identity");
    last->set_name("output/" + output.name);
    last->add_output(output.name);
  }
  std::string text;
  if (!onnx.model.SerializeToString(&text)) {
    return Status::Error(StatusCode::kConfig, "an ONNX model has at most 2 GiB: this one has more");
  }
  ENGINE_ASSIGN_OR_RETURN(const auto file, checkpoint::AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(file->Write(text.data(), text.size()));
  ENGINE_RETURN_IF_ERROR(file->Commit());
  return notes;
}

}  // namespace engine::weights
