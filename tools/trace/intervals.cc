#include "tools/trace/intervals.h"

#include <queue>
#include <set>
#include <utility>

namespace engine::trace {

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
