// pad, gather, resize: along some axes, each position of the output is a weighted sum of positions
// of the input. The tables that say of which, and those of the gradient, are made once.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "cuda_op.h"
#include "kernels/axis_map.h"
#include "kit/array_move_shapes.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

// A table of one axis before it is on the device. No positions: all stay where they are.
struct HostTable {
  std::vector<int32_t> begins, places;
  std::vector<float> shares;

  void Add(int64_t place, float share) {
    places.push_back(static_cast<int32_t>(place));
    shares.push_back(share);
  }
  void EndPosition() {
    if (begins.empty()) begins.push_back(0);
    begins.push_back(static_cast<int32_t>(places.size()));
  }

  // From `extent` positions of x to those of y that they are in.
  HostTable Transposed(int64_t extent) const {
    HostTable table;
    if (begins.empty()) return table;
    std::vector<std::vector<std::pair<int64_t, float>>> rows(static_cast<size_t>(extent));
    for (size_t y = 0; y + 1 < begins.size(); ++y) {
      for (auto j = static_cast<size_t>(begins[y]); j < static_cast<size_t>(begins[y + 1]); ++j) {
        rows[static_cast<size_t>(places[j])].emplace_back(y, shares[j]);
      }
    }
    for (const auto& row : rows) {
      for (const auto& [place, share] : row) table.Add(place, share);
      table.EndPosition();
    }
    return table;
  }
};

class ResampleOp : public CudaOp {
 public:
  ~ResampleOp() { device().Free(memory_); }
  ResampleOp(const ResampleOp&) = delete;
  ResampleOp& operator=(const ResampleOp&) = delete;

 protected:
  using CudaOp::CudaOp;

  // The last part of Infer: `make` fills tables[axis] of the axes that change.
  template <typename Make>
  Status SetTables(const Shape& x, const Make& make) noexcept try {
    HostTable tables[kMaxDims];
    make(tables);
    std::vector<HostTable> both(tables, tables + x.ndim);
    for (int32_t i = 0; i < x.ndim; ++i) both.push_back(tables[i].Transposed(x[i]));
    return Upload(both, x.ndim);
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its tables", name());
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return Run(call.inputs[0], call.outputs[0], forward_, value_, false, stream);
  }
  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return Run(call.output_grads[0], call.input_grads[0], backward_, 0, Accumulates(call, 0),
               stream);
  }

  float value_ = 0;

 private:
  Status Run(const TensorView& x, const TensorView& y, const AxisTable* tables, float value,
             bool sum, cudaStream_t stream) const noexcept {
    AxisMap map = {.value = value, .sum = sum};
    int64_t stride = x.count();
    for (int32_t i = 0; i < x.shape.ndim; ++i) {
      if (x.shape[i] > 0) stride /= x.shape[i];
      // Neighbours that stay where they are are one axis.
      const bool joins = i > 0 && tables[i].begins == nullptr && tables[i - 1].begins == nullptr;
      if (!joins) ++map.axes;
      const int32_t at = map.axes - 1;
      map.extents[at] = joins ? map.extents[at] * y.shape[i] : y.shape[i];
      map.strides[at] = stride;
      map.tables[at] = tables[i];
    }
    return WithElement(x.dtype, [&]<typename From>(From) {
      return WithElement(y.dtype, [&]<typename To>(To) {
        return Launched(LaunchAxisMap(map, As<const From>(x), As<To>(y), stream), "resampling");
      });
    });
  }

  // All tables in one piece of memory: those of y, then those of the gradient.
  Status Upload(std::span<const HostTable> tables, int32_t axes) {
    std::vector<int32_t> words;
    std::vector<size_t> starts;
    const auto append = [&](const auto& list) {
      const size_t start = words.size();
      words.resize(start + list.size());
      std::copy_n(reinterpret_cast<const int32_t*>(list.data()), list.size(), &words[start]);
    };
    words.push_back(0);  // an address in it is there without any table
    for (const HostTable& table : tables) {
      starts.push_back(words.size());
      append(table.begins);
      append(table.places);
      for (const float share : table.shares) words.push_back(std::bit_cast<int32_t>(share));
    }
    const size_t bytes = words.size() * sizeof(int32_t);
    ENGINE_RETURN_IF_ERROR(device().Allocate(bytes, &memory_).WithContext("%s", name()));
    ENGINE_RETURN_IF_ERROR(
        Launched(cudaMemcpy(memory_, words.data(), bytes, cudaMemcpyHostToDevice), "tables"));
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i].begins.empty()) continue;
      const auto axis = static_cast<int32_t>(i);
      const auto* const begins = static_cast<const int32_t*>(memory_) + starts[i];
      const int32_t* const places = begins + tables[i].begins.size();
      (axis < axes ? forward_[axis] : backward_[axis - axes]) = {
          begins, places, reinterpret_cast<const float*>(places + tables[i].places.size())};
    }
    return {};
  }

  void* memory_ = nullptr;
  AxisTable forward_[kMaxDims], backward_[kMaxDims];
};

class PadOp final : public kit::ShapedOp<ResampleOp, kit::PadRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    value_ = given_.value;
    const Shape &x = inputs[0].shape, &y = signature->outputs[0].shape;
    return SetTables(x, [&](HostTable* tables) {
      for (int32_t axis = given_.first; axis < x.ndim; ++axis) {
        for (int64_t i = 0; x[axis] != y[axis] && i < y[axis]; ++i) {
          const int64_t place = given_.Source(i - given_.before[axis - given_.first], x[axis]);
          if (place >= 0) tables[axis].Add(place, 1);
          tables[axis].EndPosition();
        }
      }
    });
  }
};

class GatherOp final : public kit::ShapedOp<ResampleOp, kit::GatherRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature*) noexcept override {
    const Shape& x = inputs[0].shape;
    return SetTables(x, [&](HostTable* tables) {
      for (size_t i = 0; i < given_.count; ++i) {
        tables[given_.axis].Add(given_.Source(static_cast<int64_t>(i), x[given_.axis]), 1);
        tables[given_.axis].EndPosition();
      }
    });
  }
};

class ResizeOp final : public ResampleOp {
 public:
  ResizeOp(const OpContext& context, const Options& attributes) noexcept
      : ResampleOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferResize(Inferring(inputs, signature), given_));
    const Shape &x = inputs[0].shape, &y = signature->outputs[0].shape;
    return SetTables(x, [&](HostTable* tables) {
      for (const int32_t axis : {1, 2}) {
        for (int64_t i = 0; i < y[axis]; ++i) {
          const auto [low, high, share] = given_.SourceOf(i, y[axis], x[axis]);
          if (share < 1) tables[axis].Add(low, 1 - share);
          if (share > 0) tables[axis].Add(high, share);
          tables[axis].EndPosition();
        }
      }
    });
  }

 private:
  const kit::ResizeAttributes given_;
};

}  // namespace

const OpFactory kMakePad = kit::NewOp<PadOp>;
const OpFactory kMakeGather = kit::NewOp<GatherOp>;
const OpFactory kMakeResize = kit::NewOp<ResizeOp>;

}  // namespace engine::cuda_ops
