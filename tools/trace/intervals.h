// Sets of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine::trace {

// begin <= end, nanoseconds; the end does not belong to it.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
};

// Disjoint, ascending, none empty.
using Intervals = std::vector<Interval>;

// What any of them covers.
Intervals Union(std::vector<Interval> intervals);
// What both cover.
Intervals Intersection(const Intervals& a, const Intervals& b);
// The part that `window` covers.
int64_t LengthWithin(const Intervals& intervals, const Interval& window);
int64_t Length(const Intervals& intervals);

// Lays intervals that ascend by begin on rows, so that no two of a row overlap: each on the first
// row that is free. The result is the row of each.
std::vector<size_t> AssignRows(const std::vector<Interval>& intervals);

}  // namespace engine::trace
