#include "tools/conform/scheduler/model_sketch.h"

#include <algorithm>

namespace engine::conform {
namespace {

int64_t Draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}
bool Coin(std::mt19937& random) {
  return Draw(random, 0, 1) == 1;
}

void Serve(std::mt19937& random, ModelSketch* model) {
  model->served = true;
  model->asynchronous = Draw(random, 0, 2) == 0;
  model->span_hook = model->global_hook = false;
  for (size_t p = 0; p < model->parameter_counts.size(); ++p) {
    if (Draw(random, 0, 4) == 0) model->tables.push_back(p);
  }
}

void DrawHooksAndGate(std::mt19937& random, ModelSketch* model) {
  model->local_hook = Coin(random);
  model->span_hook = Coin(random);
  model->global_hook = Coin(random);
  model->sharded = Draw(random, 0, 2) == 0;
  constexpr UpdateGate kGates[] = {UpdateGate::kSpan, UpdateGate::kGlobal, UpdateGate::kTensor};
  model->gate = kGates[Draw(random, 0, model->sharded ? 1 : 2)];
  if (model->sharded) return;
  if (Draw(random, 0, 2) == 0) return Serve(random, model);
  model->alone = Draw(random, 0, 3) == 0;
}

}  // namespace

ModelSketch ModelSketch::Random(std::mt19937& random) {
  ModelSketch model;
  model.layers.resize(static_cast<size_t>(Draw(random, 2, 14)));
  model.slice_multiple = int64_t{16} << Draw(random, 0, 3);
  const bool uses_priority = Coin(random);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    SketchLayer& layer = model.layers[i];
    for (int64_t n = Draw(random, 1, 2); i > 0 && n > 0; --n) {
      layer.inputs.push_back(static_cast<size_t>(Draw(random, 0, static_cast<int64_t>(i) - 1)));
    }
    for (int64_t n = Draw(random, 0, 2); n > 0; --n) {
      layer.parameters.push_back(model.parameter_counts.size());
      const int64_t least = int64_t{1} << Draw(random, 0, 18);
      model.parameter_counts.push_back(Draw(random, least, 2 * least));
    }
    if (Draw(random, 0, 4) == 0 && !model.parameter_counts.empty()) {  // tied
      const auto last = static_cast<int64_t>(model.parameter_counts.size()) - 1;
      layer.parameters.push_back(static_cast<size_t>(Draw(random, 0, last)));
    }
    if (uses_priority) layer.priority = static_cast<int32_t>(Draw(random, -2, 2));
  }
  // What the loss does not reach would not be trained.
  SketchLayer& loss = model.layers.back();
  for (size_t i = 0; i + 1 < model.layers.size(); ++i) {
    const auto reads = [i](const SketchLayer& layer) {
      return std::count(layer.inputs.begin(), layer.inputs.end(), i) > 0;
    };
    if (std::none_of(model.layers.begin(), model.layers.end(), reads)) loss.inputs.push_back(i);
  }
  DrawHooksAndGate(random, &model);
  return model;
}

ModelSketch ModelSketch::Chain(const std::vector<int64_t>& parameter_counts) {
  ModelSketch model;
  model.parameter_counts = parameter_counts;
  for (size_t i = 0; i < parameter_counts.size(); ++i) {
    SketchLayer& layer = model.layers.emplace_back();
    if (i > 0) layer.inputs = {i - 1};
    layer.parameters = {i};
  }
  return model;
}

}  // namespace engine::conform
