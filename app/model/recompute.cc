#include "app/model/recompute.h"

#include <algorithm>
#include <vector>

#include "core/graph/program.h"

namespace engine::model {
namespace {

// "" of a layer that is in none. A loss is what backward begins with.
std::string BlockOf(const graph::Node& node, std::span<const std::string> prefixes) {
  for (const std::string& prefix : prefixes) {
    if (!node.name.starts_with(prefix) || node.signature.is_loss != 0) continue;
    const size_t dot = node.name.find('.', prefix.size());
    return dot == std::string::npos ? prefix : node.name.substr(0, dot);
  }
  return "";
}

// Whether two calls do what one does.
bool IsRepeatable(const graph::Graph& graph, const graph::Node& node) {
  return node.signature.uses_replicas == 0 &&
         std::ranges::none_of(node.inputs, [&](graph::ValueId input) {
           const int32_t parameter = graph.values[input].parameter;
           return parameter != graph::kNone && graph.parameters[parameter].buffer;
         });
}

}  // namespace

Status MarkRecomputed(std::span<const std::string> prefixes, graph::Graph* graph) {
  for (const std::string& prefix : prefixes) {
    const auto fits = [&](const graph::Node& node) { return node.name.starts_with(prefix); };
    if (std::ranges::any_of(graph->nodes, fits)) continue;
    return Status::Error(StatusCode::kConfig,
                         "model.recompute: no layer's name starts with '%s'; the first is '%s'",
                         prefix.c_str(), graph->nodes[0].name.c_str());
  }
  std::string block;
  int32_t count = 0;
  for (graph::Node& node : graph->nodes) {
    const std::string own = BlockOf(node, prefixes);
    if (own != block) ++count;
    block = own;
    if (own.empty()) continue;
    node.block = count;
    node.recomputed = IsRepeatable(*graph, node);
  }
  std::vector<bool> kept(graph->values.size());
  for (const graph::GraphOutput& output : graph->outputs) kept[output.value] = true;
  for (const graph::Node& node : graph->nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const graph::NodeId producer = graph->values[node.inputs[i]].producer;
      // What an op may leave its gradient in is that of the forward pass.
      const bool inside = producer != graph::kNone && graph->nodes[producer].block == node.block &&
                          !graph::Has(node.signature.gradient_in_place, i);
      if (!inside) kept[node.inputs[i]] = true;
    }
  }
  for (const graph::Node& node : graph->nodes) {
    for (const graph::ValueId output : node.outputs) {
      if (!node.recomputed || kept[output]) continue;
      const graph::Value again = graph->values[output];
      graph->values[output].again = static_cast<graph::ValueId>(graph->values.size());
      graph->values.push_back(again);
    }
  }
  return {};
}

}  // namespace engine::model
