// Layers of a configuration, as a model plugin gets them (OptionType::kLayers).
#pragma once

#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/plugin_set.h"
#include "engine/model.h"

namespace engine::plugin {

// A layer with its own storage.
struct OwnedLayer {
  std::string op;    // empty for a residual block
  std::string name;  // empty: made by the graph builder
  bool trainable = true;
  int32_t priority = 0;
  float learning_rate_scale = 1;
  float weight_decay_scale = 1;
  std::vector<OwnedOption> attributes;  // every attribute that the op publishes
  std::vector<OwnedLayer> residual;     // of a residual block
  std::vector<OwnedLayer> shortcut;     // of a residual block; empty: its input as it is
};

class LayerList {
 public:
  explicit LayerList(std::vector<OwnedLayer> layers) : layers_(std::move(layers)) {
    specs_ = View(layers_);
  }
  LayerList(const LayerList&) = delete;
  LayerList& operator=(const LayerList&) = delete;

  const std::vector<OwnedLayer>& layers() const { return layers_; }
  std::span<const LayerSpec> specs() const { return specs_; }  // valid while the list lives

 private:
  std::span<const LayerSpec> View(const std::vector<OwnedLayer>& layers);

  const std::vector<OwnedLayer> layers_;
  // What the views point to; a deque does not move its elements.
  std::deque<std::vector<OptionValue>> attributes_;
  std::deque<std::vector<LayerSpec>> lists_;
  std::span<const LayerSpec> specs_;
};

}  // namespace engine::plugin
