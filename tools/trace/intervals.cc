#include "tools/trace/intervals.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <utility>

namespace engine::trace {

Intervals Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  Intervals result;
  for (const Interval& interval : intervals) {
    if (interval.begin >= interval.end) continue;
    if (!result.empty() && interval.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, interval.end);
    } else {
      result.push_back(interval);
    }
  }
  return result;
}

Intervals Intersection(const Intervals& a, const Intervals& b) {
  Intervals result;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.begin < both.end) result.push_back(both);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return result;
}

int64_t LengthWithin(const Intervals& intervals, const Interval& window) {
  auto it = std::lower_bound(intervals.begin(), intervals.end(), window.begin,
                             [](const Interval& i, int64_t time) { return i.end <= time; });
  int64_t length = 0;
  for (; it != intervals.end() && it->begin < window.end; ++it) {
    length += std::min(it->end, window.end) - std::max(it->begin, window.begin);
  }
  return length;
}

int64_t Length(const Intervals& intervals) {
  int64_t length = 0;
  for (const Interval& interval : intervals) length += interval.end - interval.begin;
  return length;
}

std::vector<size_t> AssignRows(const std::vector<Interval>& intervals) {
  using Busy = std::pair<int64_t, size_t>;  // until when, row
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  std::set<size_t> free;
  std::vector<size_t> rows;
  for (const Interval& interval : intervals) {
    for (; !busy.empty() && busy.top().first <= interval.begin; busy.pop()) {
      free.insert(busy.top().second);
    }
    const size_t row = free.empty() ? busy.size() : *free.begin();
    free.erase(row);
    busy.emplace(interval.end, row);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace engine::trace
