// Static partition of work over the threads of a call: the same parts in the same threads on every
// run, so that sums over parts are deterministic for a fixed number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace engine::cpu_ops {

// Elements below which a part of memory-bound work is not worth waking a thread for.
constexpr int64_t kElementGrain = int64_t{16} * 1024;
// Cuts between threads are multiples of this, so that no two threads write one cache line.
constexpr int64_t kLine = 16;

// How many parts to cut `count` units into when a part should have at least `grain` of them; at
// most the number of threads of the call.
inline int32_t PartCount(int64_t count, int64_t grain) noexcept {
  const int64_t worthwhile = count / std::max<int64_t>(grain, 1);
  return static_cast<int32_t>(std::clamp<int64_t>(worthwhile, 1, omp_get_max_threads()));
}

// Where part `part` of `parts` parts of [0, count) begins, a multiple of `align`; of part `parts`,
// the end.
inline int64_t PartBegin(int32_t part, int32_t parts, int64_t count, int64_t align) noexcept {
  return part == parts ? count : count * part / parts / align * align;
}

// Calls body(part, begin, end) once for each of `parts` consecutive ranges of [0, count), cut at
// multiples of `align`. A range may be empty.
template <typename Body>
void ForEachPart(int32_t parts, int64_t count, int64_t align, const Body& body) noexcept {
  if (parts == 1) {
    body(0, int64_t{0}, count);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(parts)
  for (int32_t part = 0; part < parts; ++part) {
    body(part, PartBegin(part, parts, count, align), PartBegin(part + 1, parts, count, align));
  }
}

// body(begin, end) over `count` elements of memory-bound work.
template <typename Body>
void ForElements(int64_t count, const Body& body) noexcept {
  ForEachPart(PartCount(count, kElementGrain), count, kLine,
              [&](int32_t, int64_t begin, int64_t end) { body(begin, end); });
}

// body(begin, end) over `rows` rows of `width` elements.
template <typename Body>
void ForRows(int64_t rows, int64_t width, const Body& body) noexcept {
  const int64_t grain = kElementGrain / std::max<int64_t>(width, 1) + 1;
  ForEachPart(PartCount(rows, grain), rows, 1,
              [&](int32_t, int64_t begin, int64_t end) { body(begin, end); });
}

}  // namespace engine::cpu_ops
