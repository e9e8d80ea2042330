// How much faster B is than A, and how sure that is.
//
// A and B take turns in blocks A B B A. Two neighbours are a pair: what the machine does in the
// meantime meets both, and because every other pair is turned round, a steady drift cancels in
// their mean. The estimate is the geometric mean over pairs of median(A) / median(B).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace engine::bench {

// The times of one run of A and of the run of B beside it.
struct Pair {
  std::vector<double> a, b;
};

struct Ratio {
  double estimate = 1;          // time of A / time of B: above 1, B is faster
  double low = 0, high = 0;     // 95 % confidence interval
  std::vector<double> by_pair;  // in the order of the pairs
};

struct BootstrapOptions {
  int resamples = 10000;
  uint64_t seed = 1;  // the same seed gives the same interval
};

// The interval is Student's t around the estimate, on logarithms, with a standard error from a
// bootstrap that draws pairs and, inside each, steps; docs/benchmarking.md says why not plain
// percentiles. Fewer than kMinPairs give no interval: it goes from 0 to infinity. Every pair has
// times on both sides, all of them above 0.
constexpr size_t kMinPairs = 3;  // the t of fewer is so wide that it says nothing
Ratio EstimateRatio(const std::vector<Pair>& pairs, const BootstrapOptions& options);

// The times of each turn of a contender. Turns of the same round are a pair.
using Turns = std::vector<std::vector<double>>;
Ratio Compare(const Turns& a, const Turns& b, uint64_t seed);

// False: there are too few pairs for one.
bool HasInterval(const Ratio& ratio);

enum class Conclusion { kFaster, kSlower, kNotSeparable };
constexpr const char* Name(Conclusion conclusion) {
  constexpr const char* kNames[] = {"faster", "slower", "not separable"};
  return kNames[static_cast<int>(conclusion)];
}

// kFaster: B is faster than A, with 95 % confidence.
Conclusion Judge(const Ratio& ratio);

// "B is 1.27x faster than A (95 % interval 1.24 to 1.30)", "B is 1.10x slower than A (...)",
// "not separable: the speed of B is 0.980 to 1.030 times that of A (95 % interval)", "not separable:
// no interval from 2 pairs, take more blocks".
std::string ConclusionText(const Ratio& ratio, const std::string& a = "A",
                           const std::string& b = "B");

}  // namespace engine::bench
