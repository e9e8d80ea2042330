// What the ops of a graph were made with: a graph has their names and signatures alone, and what
// writes a model down needs the attributes too.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/plugin/plugin_set.h"
#include "engine/op.h"

namespace engine::weights {

// The attributes of one op. One that it does not have, of a plugin that knows less, is `fallback`.
class Attributes {
 public:
  explicit Attributes(const std::vector<plugin::OwnedOption>& all) : all_(all) {}

  int64_t Int(std::string_view name, int64_t fallback = 0) const;  // also a bool
  double Float(std::string_view name, double fallback = 0) const;
  std::string_view Word(std::string_view name, std::string_view fallback = {}) const;
  // A single number is a list of one.
  std::vector<int64_t> Ints(std::string_view name, std::vector<int64_t> fallback = {}) const;
  const std::vector<plugin::OwnedOption>& all() const { return all_; }

 private:
  const plugin::OwnedOption* Find(std::string_view name) const;
  const std::vector<plugin::OwnedOption>& all_;  // borrowed
};

class MadeOps {
 public:
  // Ops are made by `make`. Both are borrowed.
  MadeOps(const plugin::PluginSelection& plugins, const plugin::OpFactory& make)
      : plugins_(plugins), make_(make) {}
  MadeOps(const MadeOps&) = delete;
  MadeOps& operator=(const MadeOps&) = delete;

  // To build a graph with. Borrows this.
  plugin::OpFactory factory();
  // Of a node of that graph, with the published defaults of those that its model did not give.
  Attributes Of(const graph::Node& node) const;
  // The plugin that its op is of.
  std::string_view PluginOf(const graph::Node& node) const;

 private:
  const plugin::PluginSelection& plugins_;
  const plugin::OpFactory& make_;
  // An op that a model only asked for is gone, and its address perhaps another's: who came last.
  std::map<const Op*, plugin::ResolvedOp> made_;
};

}  // namespace engine::weights
