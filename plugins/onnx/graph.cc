#include "graph.h"

#include <algorithm>
#include <utility>

#include "fold.h"

namespace engine::onnx {
namespace {

bool Matches(std::string_view name, std::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (size_t begin = star; begin <= name.size(); ++begin) {
    if (Matches(name.substr(begin), pattern.substr(star + 1))) return true;
  }
  return false;
}

// Inputs that are lists and positions, or are compared: no parameter is.
bool IsKnownInput(const Node& node, size_t i) {
  static const std::set<std::string> kComparisons = {
      "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or"};
  static const std::set<std::string> kLists = {
      "Reshape", "Expand", "Slice", "Unsqueeze", "Squeeze", "Split",    "Resize",
      "Tile",    "Pad",    "Trilu", "Clip",      "Dropout", "ReduceSum"};
  const std::string& type = node.type();
  if (kComparisons.contains(type) || type == "ConstantOfShape" || type == "Range") return true;
  return type == "Where" ? i == 0 : kLists.contains(type) && i > 0;
}

}  // namespace

bool MatchesAny(std::string_view name, std::string_view patterns) {
  while (!patterns.empty()) {
    const size_t end = std::min(patterns.find(','), patterns.size());
    if (end > 0 && Matches(name, patterns.substr(0, end))) return true;
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
  }
  return false;
}

Result<Graph> Graph::Create(const ModelFile& file, std::string_view constants) {
  Graph graph;
  ENGINE_RETURN_IF_ERROR(graph.AddNodes(file));
  graph.FindConstants(file, constants);
  graph.FindNeeded(file);
  return graph;
}

Status Graph::AddNodes(const ModelFile& file) {
  std::set<std::string> known;
  for (const auto& input : file.graph().input()) {
    known.insert(input.name());
    // Files of old keep initialisers among their inputs.
    if (file.FindInitializer(input.name()) == nullptr) inputs_.push_back(&input);
  }
  for (const auto& tensor : file.graph().initializer()) known.insert(tensor.name());
  for (const proto::NodeProto& proto : file.graph().node()) {
    const Node& node = nodes_.emplace_back(proto, file.opset());
    for (const std::string& input : proto.input()) {
      if (input.empty()) continue;
      ++uses_[input];
      if (known.contains(input)) continue;
      return node
          .Damaged("reads '%s', which is no input and which no node before it gives", input.c_str())
          .WithContext("%s", file.path().c_str());
    }
    for (const std::string& output : proto.output()) {
      if (output.empty()) continue;
      producers_[output] = nodes_.size() - 1;
      if (known.insert(output).second) continue;
      return node.Damaged("gives '%s', which is there already", output.c_str())
          .WithContext("%s", file.path().c_str());
    }
  }
  for (const auto& output : file.graph().output()) {
    ++uses_[output.name()];
    if (known.contains(output.name())) continue;
    return Status::Error(StatusCode::kBadData, "%s: no node gives the output '%s'",
                         file.path().c_str(), output.name().c_str());
  }
  return {};
}

// Backwards: what has to be known makes what it is computed from known. Forwards: what is computed of
// known values is.
void Graph::FindConstants(const ModelFile& file, std::string_view patterns) {
  std::set<std::string> sampled;  // depends on samples: no initialiser before it is known
  for (const auto* const input : inputs_) sampled.insert(input->name());
  for (const Node& node : nodes_) {
    const auto& inputs = node.proto().input();
    if (node.type() == "Shape" || node.type() == "Size" ||
        std::none_of(inputs.begin(), inputs.end(),
                     [&](const std::string& input) { return sampled.contains(input); })) {
      continue;
    }
    sampled.insert(node.proto().output().begin(), node.proto().output().end());
  }
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    const bool all = CanFold(node->type()) && node->output_count() > 0 &&
                     constants_.contains(node->output(0)) && !sampled.contains(node->output(0));
    for (size_t i = 0; i < node->input_count(); ++i) {
      if (all || IsKnownInput(*node, i)) constants_.insert(node->input(i));
    }
  }
  const std::set<std::string> wanted = std::exchange(constants_, {});
  for (const proto::TensorProto& tensor : file.graph().initializer()) {
    const bool trained = IsFloat(tensor.data_type()) && !wanted.contains(tensor.name()) &&
                         !MatchesAny(tensor.name(), patterns);
    if (!trained) constants_.insert(tensor.name());
  }
  for (const Node& node : nodes_) {
    bool known = CanFold(node.type());
    for (size_t i = 0; i < node.input_count(); ++i) {
      known = known && (!node.HasInput(i) || constants_.contains(node.input(i)));
    }
    known = known || node.type() == "Shape" || node.type() == "Size" || node.type() == "Constant";
    if (!known) continue;
    for (const std::string& output : node.proto().output()) constants_.insert(output);
  }
}

void Graph::FindNeeded(const ModelFile& file) {
  std::set<std::string> wanted;
  for (const auto& output : file.graph().output()) wanted.insert(output.name());
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    const auto& outputs = node->proto().output();
    const auto is_wanted = [&](const std::string& output) { return wanted.contains(output); };
    if (std::none_of(outputs.begin(), outputs.end(), is_wanted)) continue;
    needed_.insert(&*node);
    if (node->type() == "Shape" || node->type() == "Size") continue;
    wanted.insert(node->proto().input().begin(), node->proto().input().end());
  }
}

const Node* Graph::Producer(const std::string& value) const {
  const auto found = producers_.find(value);
  return found == producers_.end() ? nullptr : &nodes_[found->second];
}

int Graph::Uses(const std::string& value) const {
  const auto found = uses_.find(value);
  return found == uses_.end() ? 0 : found->second;
}

}  // namespace engine::onnx
