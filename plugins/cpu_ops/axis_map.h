// Linear maps of planes of channels that work along rows and along columns: means over windows, and
// interpolation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine::cpu_ops {

// Each target of an axis is a sum of some of its sources, with weights.
class AxisMap {
 public:
  struct Term {
    int64_t source;
    float weight;
  };

  // Ends the terms of a target; the next ones are those of the next target.
  void EndTarget() { end_.push_back(terms_.size()); }
  void Add(int64_t source, float weight) { terms_.push_back({source, weight}); }
  // From targets to sources, of which there are so many.
  AxisMap Transposed(int64_t sources) const;

  int64_t targets() const noexcept { return static_cast<int64_t>(end_.size()); }
  const Term* begin(int64_t target) const noexcept {
    return terms_.data() + (target > 0 ? end_[static_cast<size_t>(target) - 1] : 0);
  }
  const Term* end(int64_t target) const noexcept {
    return terms_.data() + end_[static_cast<size_t>(target)];
  }

 private:
  std::vector<Term> terms_;
  std::vector<size_t> end_;
};

// target (samples, rows.targets(), columns.targets(), channels) (+)= the map of source (samples,
// height, width, channels).
struct PlaneMap {
  const AxisMap &rows, &columns;
  const float* source;
  float* target;
  int64_t samples, height, width, channels;
  bool sum;  // add to the target
};
void MapPlanes(const PlaneMap& map) noexcept;

}  // namespace engine::cpu_ops
