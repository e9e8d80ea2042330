// Numbers with mean 0 and standard deviation 1, by constants that are given or measured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace engine::data_kit {

// Mean and deviation of numbers that come in parts, without the loss of digits that sums of squares
// have (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
// variances, 1979).
class Moments {
 public:
  void Add(const float* numbers, int64_t count);
  void Add(double number) { Combine(1, number, 0); }

  double mean() const { return mean_; }
  double deviation() const;  // of the population; 1 where it is 0, so that one may divide by it

 private:
  void Combine(double count, double mean, double squares);
  double count_ = 0, mean_ = 0, squares_ = 0;
};

// (x - mean) / deviation, for each of some channels.
struct Normalization {
  std::vector<float> mean, deviation;

  // Of the options `mean` and `std`, lists of one number for all channels or of one for each; 0 and
  // 1 where they are empty. kConfig with `block`, the name of the dataset's block.
  static Result<Normalization> Parse(const char* block, std::string_view mean,
                                     std::string_view deviation);
  static Normalization Measured(const std::vector<Moments>& channels);

  // One number for each of `channels`. kConfig when there are others than one or `channels`.
  Status SpreadOver(const char* block, int64_t channels);
  void Apply(int64_t channel, float* numbers, int64_t count) const;

  // "mean: "0.48, 0.45" std: "0.22, 0.22"", as a configuration has them.
  std::string Text() const;
};

}  // namespace engine::data_kit
