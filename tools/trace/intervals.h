// Sets of times.
#pragma once

#include <boost/icl/interval_set.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace engine::trace {

// begin <= end, nanoseconds; the end does not belong to it.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
};

// Disjoint, ascending, none empty.
using Intervals = boost::icl::interval_set<int64_t, std::less,
                                           boost::icl::right_open_interval<int64_t, std::less>>;

// What any of them covers.
inline Intervals Union(const std::vector<Interval>& intervals) {
  Intervals all;
  for (const Interval& interval : intervals) all.add({interval.begin, interval.end});
  return all;
}
// What both cover.
inline Intervals Intersection(const Intervals& a, const Intervals& b) {
  return a & b;
}
inline int64_t Length(const Intervals& intervals) {
  return boost::icl::length(intervals);
}
// The part that `window` covers.
inline int64_t LengthWithin(const Intervals& intervals, const Interval& window) {
  Intervals within;
  boost::icl::add_intersection(within, intervals, {window.begin, window.end});
  return Length(within);
}

// Lays intervals that ascend by begin on rows, so that no two of a row overlap: each on the first
// row that is free. The result is the row of each.
std::vector<size_t> AssignRows(const std::vector<Interval>& intervals);

}  // namespace engine::trace
