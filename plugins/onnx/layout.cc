#include "layout.h"

#include <numeric>
#include <set>
#include <utility>

namespace engine::onnx {

Layout Layout::RowMajor(const Dims& shape, bool batched, int64_t samples) {
  Layout layout{.batched = batched, .samples = samples};
  for (size_t i = 0; i < shape.size(); ++i) {
    std::vector<int>& dim = layout.dims.emplace_back();
    if (shape[i] == 1 && !(batched && i == 0)) continue;
    dim.push_back(static_cast<int>(layout.axes.size()));
    layout.axes.push_back(shape[i]);
  }
  return layout;
}

Dims Layout::Shape() const {
  Dims shape;
  for (const std::vector<int>& dim : dims) {
    int64_t extent = 1;
    for (const int axis : dim) extent *= Extent(axis);
    shape.push_back(extent);
  }
  return shape;
}

void Layout::Split(int axis, int64_t inner) {
  axes[axis] /= inner;
  axes.insert(axes.begin() + axis + 1, inner);
  for (std::vector<int>& dim : dims) {
    for (int& other : dim) other += other > axis ? 1 : 0;
    const auto place = std::ranges::find(dim, axis);
    if (place != dim.end()) dim.insert(place + 1, axis + 1);
  }
}

void Layout::Permute(std::span<const int64_t> order) {
  std::vector<std::vector<int>> permuted;
  for (const int64_t dim : order) permuted.push_back(dims[static_cast<size_t>(dim)]);
  dims = std::move(permuted);
}

// Walks over the axes in logical order and fills one extent after the other. Samples are never split,
// and stand, where there is a choice (a batch of 1), at the beginning of a dimension.
bool Layout::Reshape(const Dims& shape) {
  Layout next = *this;
  next.dims.assign(1, {});
  for (const std::vector<int>& dim : dims) {
    next.dims[0].insert(next.dims[0].end(), dim.begin(), dim.end());
  }
  std::vector<std::vector<int>> filled;
  size_t at = 0;
  for (const int64_t extent : shape) {
    filled.emplace_back();
    int64_t left = extent;
    while (at < next.dims[0].size()) {
      const int axis = next.dims[0][at];
      const int64_t here = next.Extent(axis);
      if (left == 1 && !(next.IsSamples(axis) && here == 1 && filled.back().empty())) break;
      if (left % here != 0) {
        if (here % left != 0 || next.IsSamples(axis)) return false;
        next.Split(axis, here / left);
        for (std::vector<int>& dim : filled) {
          for (int& other : dim) other += other > axis ? 1 : 0;
        }
        continue;
      }
      filled.back().push_back(axis);
      left /= here;
      ++at;
    }
    if (left != 1) return false;
  }
  if (at < next.dims[0].size()) return false;
  next.dims = std::move(filled);
  *this = std::move(next);
  return true;
}

Layout Layout::Reordered(std::span<const int> order) const {
  Layout next = *this;
  std::vector<int> place(axes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    next.axes[i] = axes[order[i]];
    place[order[i]] = static_cast<int>(i);
  }
  for (std::vector<int>& dim : next.dims) {
    for (int& axis : dim) axis = axis == kShared ? kShared : place[axis];
  }
  return next;
}

std::vector<int> Layout::LogicalOrder() const {
  std::vector<int> order;
  if (batched) order.push_back(0);
  for (const std::vector<int>& dim : dims) {
    std::ranges::copy_if(dim, std::back_inserter(order),
                         [&](int axis) { return !IsSamples(axis); });
  }
  return order;
}

std::vector<int> Layout::MemoryOrder() const {
  std::vector<int> order(axes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

namespace {

// Products of the extents of a dimension from the innermost axis on: where it may be cut.
void AddCuts(const Layout& tensor, const std::vector<int>& axes, std::set<int64_t>* cuts) {
  int64_t product = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    product *= tensor.Extent(*axis);
    cuts->insert(product);
  }
}

// Splits the axes of a dimension at each of the cuts.
bool Cut(const std::set<int64_t>& cuts, const std::vector<int>& axes, Layout* tensor) {
  for (const int64_t cut : cuts) {
    int64_t product = 1;
    const std::vector<int> before = axes;
    for (auto axis = before.rbegin(); axis != before.rend() && product < cut; ++axis) {
      const int64_t extent = tensor->Extent(*axis);
      if (product * extent > cut) {
        if (cut % product != 0 || extent % (cut / product) != 0 || tensor->IsSamples(*axis)) {
          return false;
        }
        tensor->Split(*axis, cut / product);
        break;
      }
      product *= extent;
    }
  }
  return true;
}

}  // namespace

bool Align(std::span<Layout* const> tensors, int skipped, std::vector<std::vector<Column>>* dims) {
  int rank = 0;
  for (const Layout* const tensor : tensors) rank = std::max(rank, tensor->rank());
  const auto axes_of = [rank](Layout& tensor, int dim) {  // counted in the tensor with most
    const int own = dim - (rank - tensor.rank());
    return own < 0 ? nullptr : &tensor.dims[own];
  };
  // All cuts are made first: they give later axes other numbers.
  for (int dim = 0; dim < rank - skipped; ++dim) {
    std::set<int64_t> cuts;
    for (Layout* const tensor : tensors) {
      if (const auto* const axes = axes_of(*tensor, dim)) AddCuts(*tensor, *axes, &cuts);
    }
    for (Layout* const tensor : tensors) {
      const auto* const axes = axes_of(*tensor, dim);
      if (axes != nullptr && !Cut(cuts, *axes, tensor)) return false;
    }
  }
  dims->assign(static_cast<size_t>(std::max(rank - skipped, 0)), {});
  for (size_t dim = 0; dim < dims->size(); ++dim) {
    std::vector<Column>& columns = (*dims)[dim];
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto* const axes = axes_of(*tensors[i], static_cast<int>(dim));
      if (axes == nullptr || axes->empty()) continue;
      if (columns.empty()) {
        columns.assign(axes->size(), {std::vector<int>(tensors.size(), kAbsent)});
      }
      if (columns.size() != axes->size()) return false;
      for (size_t j = 0; j < axes->size(); ++j) {
        Column& column = columns[j];
        const int axis = (*axes)[j];
        const int64_t extent = tensors[i]->Extent(axis);
        if (column.extent != 1 && column.extent != extent) return false;
        column.extent = extent;
        column.axis[i] = axis;
        column.samples = column.samples || (axis == 0 && tensors[i]->batched);
      }
    }
  }
  return true;
}

}  // namespace engine::onnx
