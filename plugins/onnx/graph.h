// The nodes of a file, who makes and who uses each of their values, and what of them is known without a
// sample.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "model_file.h"

namespace engine::onnx {

class Graph {
 public:
  // Borrows `file`. `constants`: patterns of the names of floating-point initialisers that are not
  // trained, '*' for any text, separated by commas. kBadData where a node reads what no node before it
  // gives, as in a cycle.
  static Result<Graph> Create(const ModelFile& file, std::string_view constants);

  const std::vector<Node>& nodes() const { return nodes_; }  // each behind those that it reads
  const std::vector<const proto::ValueInfoProto*>& inputs() const { return inputs_; }

  // The node that gives a value, or null.
  const Node* Producer(const std::string& value) const;
  // How many nodes read a value; one more if it is an output of the graph.
  int Uses(const std::string& value) const;
  // Whether it depends on no sample and on nothing that is trained. Extents count as known.
  bool IsConstant(const std::string& value) const { return constants_.contains(value); }
  // Whether an output of the graph needs the node.
  bool IsNeeded(const Node& node) const { return needed_.contains(&node); }

 private:
  Status AddNodes(const ModelFile& file);
  void FindConstants(const ModelFile& file, std::string_view patterns);
  void FindNeeded(const ModelFile& file);

  std::vector<Node> nodes_;
  std::vector<const proto::ValueInfoProto*> inputs_;
  std::map<std::string, size_t> producers_;
  std::map<std::string, int> uses_;
  std::set<std::string> constants_;
  std::set<const Node*> needed_;
};

// Whether `name` is like one of the patterns.
bool MatchesAny(std::string_view name, std::string_view patterns);

}  // namespace engine::onnx
