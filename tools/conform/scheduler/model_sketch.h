// A model as far as a scheduler is concerned.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "engine/scheduler.h"

namespace engine::conform {

struct SketchLayer {
  std::vector<size_t> inputs;      // earlier layers; empty: reads the batch
  std::vector<size_t> parameters;  // ordinals in ModelSketch::parameter_counts
  int32_t priority = 0;
};

struct ModelSketch {
  std::vector<SketchLayer> layers;
  std::vector<int64_t> parameter_counts;  // elements, by ordinal
  UpdateGate gate = UpdateGate::kSpan;    // of the optimizer
  bool local_hook = false;                // one per gradient, before its transfer
  bool span_hook = false;                 // after it, on any span
  bool global_hook = false;               // after it, sees all gradients first
  bool sharded = false;
  bool alone = false;          // one rank: nothing travels; neither sharded nor served
  bool served = false;         // no hook after the transfer then
  bool asynchronous = false;   // served without statistics
  std::vector<size_t> tables;  // served: ordinals of parameters of which rows travel
  int64_t slice_multiple = 1;

  static ModelSketch Random(std::mt19937& random);

  // A chain of layers, each with one parameter of so many elements.
  static ModelSketch Chain(const std::vector<int64_t>& parameter_counts);
};

}  // namespace engine::conform
