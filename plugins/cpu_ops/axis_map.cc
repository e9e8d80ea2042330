#include "axis_map.h"

#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

// Terms of one target.
struct Terms {
  const AxisMap::Term *begin, *end;

  Terms(const AxisMap& map, int64_t target) noexcept
      : begin(map.begin(target)), end(map.end(target)) {}
};

// One target, for `lanes` channels from `source` on.
template <typename V>
CPU_OPS_INLINE V SumOf(const PlaneMap& map, const Terms& rows, const Terms& columns,
                       const float* source, int64_t lanes) noexcept {
  V total = {};
  for (const AxisMap::Term* row = rows.begin; row != rows.end; ++row) {
    const float* from = source + row->source * map.width * map.channels;
    for (const AxisMap::Term* column = columns.begin; column != columns.end; ++column) {
      total +=
          LoadAs<V>(from + column->source * map.channels, lanes) * (row->weight * column->weight);
    }
  }
  return total;
}

// Rows [begin, end) of the target, which are counted over all samples.
template <typename V>
CPU_OPS_INLINE void MapRows(const PlaneMap& map, int64_t begin, int64_t end) {
  const int64_t height = map.rows.targets(), width = map.columns.targets();
  for (int64_t at = begin; at < end; ++at) {
    const float* plane = map.source + at / height * map.height * map.width * map.channels;
    const Terms rows(map.rows, at % height);
    for (int64_t x = 0; x < width; ++x) {
      const Terms columns(map.columns, x);
      ForLanes<V>(map.channels, [&](int64_t c, auto lanes) CPU_OPS_INLINE_LAMBDA {
        const V total = SumOf<V>(map, rows, columns, plane + c, lanes);
        float* target = map.target + (at * width + x) * map.channels + c;
        StoreAs(target, map.sum ? total + LoadAs<V>(target, lanes) : total, lanes);
      });
    }
  }
}

}  // namespace

AxisMap AxisMap::Transposed(int64_t sources) const {
  std::vector<std::vector<Term>> lists(static_cast<size_t>(sources));
  for (int64_t i = 0; i < targets(); ++i) {
    for (const Term* term = begin(i); term != end(i); ++term) {
      lists[static_cast<size_t>(term->source)].push_back({i, term->weight});
    }
  }
  AxisMap map;
  for (const std::vector<Term>& list : lists) {
    for (const Term& term : list) map.Add(term.source, term.weight);
    map.EndTarget();
  }
  return map;
}

void MapPlanes(const PlaneMap& map) noexcept {
  const int64_t rows = map.samples * map.rows.targets();
  if (rows == 0) return;
  const int64_t elements = (map.height * map.width / map.rows.targets() + map.columns.targets());
  ForRows(rows, elements * map.channels,
          [&](int64_t begin, int64_t end) { CPU_OPS_RUN(MapRows, map, begin, end); });
}

}  // namespace engine::cpu_ops
