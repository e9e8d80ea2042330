#include "tests/conformance/ops/reference_array_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

namespace engine::test {
namespace {

// Positions along the axes.
using Index = std::vector<int64_t>;

Index IndexOf(const Shape& shape, int64_t element) {
  Index index(At(shape.ndim));
  for (int32_t i = shape.ndim; i-- > 0;) {
    index[At(i)] = element % shape[i];
    element /= shape[i];
  }
  return index;
}

// The element of x that is there, where x is broadcast to a shape that has more dimensions, or
// larger ones.
double Pick(const Tensor& x, const Index& index) {
  int64_t element = 0;
  for (int32_t i = 0; i < x.shape().ndim; ++i) {
    const int64_t position = index[index.size() - At(x.shape().ndim - i)];
    element = element * x.shape()[i] + (x.shape()[i] == 1 ? 0 : position);
  }
  return x.values[At(element)];
}

Shape BroadcastOf(Inputs inputs) {
  Shape y;
  for (const Tensor& x : inputs) y.ndim = std::max(y.ndim, x.shape().ndim);
  for (int32_t i = 1; i <= y.ndim; ++i) {
    y[-i] = 1;
    for (const Tensor& x : inputs) {
      if (i <= x.shape().ndim && x.shape()[-i] != 1) y[-i] = x.shape()[-i];
    }
  }
  return y;
}

// y at an index, for all of a shape.
Values Fill(const Shape& shape, const std::function<double(Index index)>& value) {
  Values y(At(shape.Count()));
  for (size_t i = 0; i < y.size(); ++i) y[i] = value(IndexOf(shape, int64_t(i)));
  return y;
}

template <auto kFunction>
Values Binary(Inputs inputs, const Options&) {
  return Fill(BroadcastOf(inputs), [&](const Index& index) {
    return kFunction(Pick(inputs[0], index), Pick(inputs[1], index));
  });
}

Values Where(Inputs inputs, const Options&) {
  return Fill(BroadcastOf(inputs), [&](const Index& index) {
    return Pick(inputs[Pick(inputs[0], index) != 0 ? 1 : 2], index);
  });
}

int32_t FirstAxis(const Tensor& x) {
  return x.spec.batched != 0 ? 1 : 0;
}

int32_t Axis(const Tensor& x, const Options& attributes) {
  const int64_t axis = attributes.Int("axis");
  return static_cast<int32_t>(axis < 0 ? axis + x.shape().ndim : axis);
}

template <bool kLog>
Values Softmax(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const int32_t axis = Axis(x, attributes);
  const size_t extent = At(x.shape()[axis]), inner = At(x.shape().Count(axis + 1));
  const auto line = [&](size_t i) { return i / (extent * inner) * inner + i % inner; };
  Values y = x.values, sums(y.size() / extent);
  for (size_t i = 0; i < y.size(); ++i) sums[line(i)] += std::exp(y[i]);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = kLog ? y[i] - std::log(sums[line(i)]) : std::exp(y[i]) / sums[line(i)];
  }
  return y;
}

Values Matmul(Inputs inputs, const Options& attributes) {
  const bool swap_a = attributes.Bool("transpose_a"), swap_b = attributes.Bool("transpose_b");
  const Shape &a = inputs[0].shape(), &b = inputs[1].shape();
  Shape leading_a = a, leading_b = b;
  for (Shape* shape : {&leading_a, &leading_b}) (*shape)[-1] = (*shape)[-2] = 1;
  Shape y = BroadcastOf({{{leading_a}, {}}, {{leading_b}, {}}});
  y[-2] = a[swap_a ? -1 : -2];
  y[-1] = b[swap_b ? -2 : -1];
  return Fill(y, [&](const Index& index) {
    const int64_t row = index[index.size() - 2], column = index.back();
    double sum = 0;
    for (int64_t k = 0; k < a[swap_a ? -2 : -1]; ++k) {
      Index of_a = index, of_b = index;
      of_a[index.size() - 2] = swap_a ? k : row;
      of_a.back() = swap_a ? row : k;
      of_b[index.size() - 2] = swap_b ? column : k;
      of_b.back() = swap_b ? k : column;
      sum += Pick(inputs[0], of_a) * Pick(inputs[1], of_b);
    }
    return attributes.Float("scale") * sum;
  });
}

Values RmsNorm(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const size_t width = At(x.width());
  Values y = x.values;
  for (size_t i = 0; i < y.size(); ++i) {
    const double* const row = x.values.data() + i / width * width;
    double squares = 0;
    for (size_t j = 0; j < width; ++j) squares += row[j] * row[j];
    y[i] *= inputs[1].values[i % width] /
            std::sqrt(squares / double(width) + attributes.Float("epsilon"));
  }
  return y;
}

Values Sdpa(Inputs inputs, const Options& attributes) {
  const Tensor &q = inputs[0], &k = inputs[1], &v = inputs[2];
  const int64_t keys = k.shape()[2];
  double scale = attributes.Float("scale");
  if (scale == 0) scale = 1 / std::sqrt(double(q.width()));
  Shape y = q.shape();
  y[-1] = v.width();
  return Fill(y, [&](const Index& index) {
    const int64_t seen = attributes.Bool("causal") ? std::min(index[2] + 1, keys) : keys;
    double sum = 0, weighted = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double score = 0;
      for (int64_t d = 0; d < q.width(); ++d) {
        score += Pick(q, {index[0], index[1], index[2], d}) * Pick(k, {index[0], index[1], j, d});
      }
      score *= scale;
      if (inputs.size() > 3) score += Pick(inputs[3], {index[0], index[1], index[2], j});
      sum += std::exp(score);
      weighted += std::exp(score) * Pick(v, {index[0], index[1], j, index[3]});
    }
    return weighted / sum;
  });
}

Values RotaryEmbedding(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const int64_t half = x.width() / 2;
  return Fill(x.shape(), [&](const Index& index) {
    const int64_t i = index.back();
    const bool interleaved = attributes.Bool("interleaved");
    const bool is_first = interleaved ? i % 2 == 0 : i < half;
    Index other = index;
    other.back() += (is_first ? 1 : -1) * (interleaved ? 1 : half);
    return Pick(x, index) * Pick(inputs[1], index) +
           (is_first ? -1 : 1) * Pick(x, other) * Pick(inputs[2], index);
  });
}

enum class Kind { kSum, kMean, kMax };

template <Kind kKind>
Values Reduce(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  std::vector<bool> reduced(At(x.shape().ndim), attributes.Ints("axes").empty());
  if (x.spec.batched != 0) reduced[0] = false;
  for (const int64_t axis : attributes.Ints("axes")) {
    reduced[At(axis < 0 ? axis + x.shape().ndim : axis)] = true;
  }
  Shape y = x.shape();
  for (int32_t i = 0; i < y.ndim; ++i) {
    if (reduced[At(i)]) y[i] = 1;
  }
  const double count = double(x.values.size()) / double(y.Count());
  Values results(At(y.Count()),
                 kKind == Kind::kMax ? -std::numeric_limits<double>::infinity() : 0.0);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const Index index = IndexOf(x.shape(), int64_t(i));
    int64_t element = 0;
    for (int32_t j = 0; j < y.ndim; ++j) {
      element = element * y[j] + (reduced[At(j)] ? 0 : index[At(j)]);
    }
    double& result = results[At(element)];
    result = kKind == Kind::kMax ? std::max(result, x.values[i])
                                 : result + x.values[i] / (kKind == Kind::kMean ? count : 1);
  }
  return results;
}

// ---- Moves

Values Expand(Inputs inputs, const Options& attributes) {
  const Shape& x = inputs[0].shape();
  Shape y;
  if (inputs[0].spec.batched != 0) y.dims[y.ndim++] = x[0];
  for (const int64_t extent : attributes.Ints("shape")) y.dims[y.ndim++] = extent;
  for (int32_t i = 1; i <= y.ndim; ++i) {
    if (y[-i] == -1) y[-i] = x[-i];
  }
  return Fill(y, [&](const Index& index) { return Pick(inputs[0], index); });
}

Values Transpose(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const int32_t first = FirstAxis(x), ndim = x.shape().ndim;
  const auto given = attributes.Ints("order");
  Shape y = x.shape();
  std::vector<size_t> order(At(ndim), 0);
  for (int32_t i = first; i < ndim; ++i) {
    order[At(i)] = At(given.empty() ? ndim - 1 - (i - first) : given[At(i - first)]);
    y[i] = x.shape().dims[order[At(i)]];
  }
  return Fill(y, [&](const Index& index) {
    Index of_x = index;
    for (size_t i = At(first); i < index.size(); ++i) of_x[order[i]] = index[i];
    return Pick(x, of_x);
  });
}

Values Concat(Inputs inputs, const Options& attributes) {
  const int32_t axis = Axis(inputs[0], attributes);
  Shape y = BroadcastOf(inputs);
  y[axis] = 0;
  for (const Tensor& x : inputs) y[axis] += x.shape()[axis];
  return Fill(y, [&](Index index) {
    size_t i = 0;
    for (; index[At(axis)] >= inputs[i].shape()[axis]; ++i) {
      index[At(axis)] -= inputs[i].shape()[axis];
    }
    return Pick(inputs[i], index);
  });
}

Values Slice(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const int32_t axis = Axis(x, attributes);
  const int64_t extent = x.shape()[axis], step = attributes.Int("step");
  std::vector<int64_t> positions;
  int64_t at = attributes.Int("begin"), end = attributes.Int("end");
  if (at < 0) at += extent;
  if (end < 0) end += extent;
  for (; step > 0 ? at < std::min(end, extent) : at > std::max(end, int64_t{-1}); at += step) {
    positions.push_back(at);
  }
  Shape y = x.shape();
  y[axis] = int64_t(positions.size());
  return Fill(y, [&](Index index) {
    index[At(axis)] = positions[At(index[At(axis)])];
    return Pick(x, index);
  });
}

Values Gather(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const int32_t axis = Axis(x, attributes);
  const auto indices = attributes.Ints("indices");
  Shape y = x.shape();
  y[axis] = int64_t(indices.size());
  return Fill(y, [&](Index index) {
    const int64_t position = indices[At(index[At(axis)])];
    index[At(axis)] = position < 0 ? position + x.shape()[axis] : position;
    return Pick(x, index);
  });
}

Values Pad(Inputs inputs, const Options& attributes) {
  const Tensor& x = inputs[0];
  const int32_t first = FirstAxis(x);
  const std::string_view mode = attributes.String("mode");
  const auto before = attributes.Ints("before"), after = attributes.Ints("after");
  const auto of = [](std::span<const int64_t> list, int32_t i) {
    return list.empty() ? 0 : list[At(i)];
  };
  Shape y = x.shape();
  for (int32_t i = first; i < y.ndim; ++i) y[i] += of(before, i - first) + of(after, i - first);
  return Fill(y, [&](Index index) {
    for (int32_t i = first; i < y.ndim; ++i) {
      int64_t& position = index[At(i)];
      const int64_t last = x.shape()[i] - 1;
      position -= of(before, i - first);
      if (position >= 0 && position <= last) continue;
      if (mode == "constant") return attributes.Float("value");
      const int64_t end = position < 0 ? 0 : last;
      position = mode == "edge" ? end : 2 * end - position;
    }
    return Pick(x, index);
  });
}

}  // namespace

const ReferenceFormulas& ReferenceArrayOps() {
  static const ReferenceFormulas formulas = {
      {"add", Binary<[](double a, double b) { return a + b; }>},
      {"accumulate", Binary<[](double a, double b) { return a + b; }>},
      {"subtract", Binary<[](double a, double b) { return a - b; }>},
      {"multiply", Binary<[](double a, double b) { return a * b; }>},
      {"divide", Binary<[](double a, double b) { return a / b; }>},
      {"maximum", Binary<[](double a, double b) { return std::max(a, b); }>},
      {"minimum", Binary<[](double a, double b) { return std::min(a, b); }>},
      {"power", Binary<[](double a, double b) { return std::pow(a, b); }>},
      {"prelu", Binary<[](double x, double slope) { return x < 0 ? slope * x : x; }>},
      {"where", Where},
      {"softmax", Softmax<false>},
      {"log_softmax", Softmax<true>},
      {"matmul", Matmul},
      {"rms_norm", RmsNorm},
      {"scaled_dot_product_attention", Sdpa},
      {"rotary_embedding", RotaryEmbedding},
      {"reduce_sum", Reduce<Kind::kSum>},
      {"reduce_mean", Reduce<Kind::kMean>},
      {"reduce_max", Reduce<Kind::kMax>},
      {"expand", Expand},
      {"transpose", Transpose},
      {"concat", Concat},
      {"slice", Slice},
      {"gather", Gather},
      {"pad", Pad}};
  return formulas;
}

}  // namespace engine::test
