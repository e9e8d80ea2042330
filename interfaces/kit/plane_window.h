// Windows that move over an axis, or over a plane of rows and columns: of convolutions and pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/options.h"
#include "engine/status.h"
#include "engine/tensor.h"
#include "kit/op_shapes.h"

namespace engine::kit {

// A window of `kernel` taps, `dilation` positions apart, that moves by `stride` over an axis with
// `before` and `after` positions of padding at its ends.
struct Window {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t before = 0, after = 0;
  int64_t dilation = 1;

  struct Range {
    int64_t begin, end;
    int64_t size() const noexcept { return end > begin ? end - begin : 0; }
  };

  int64_t Reach() const noexcept { return (kernel - 1) * dilation + 1; }
  // Positions of the window on an axis of `extent`; 0 if it does not fit. With `ceil`, a last one
  // may reach beyond the padding, but begins before it.
  int64_t Positions(int64_t extent, bool ceil = false) const noexcept {
    const int64_t room = extent + before + after - Reach() + (ceil ? stride - 1 : 0);
    if (room < 0) return 0;
    const int64_t positions = room / stride + 1;
    const bool begins_behind = (positions - 1) * stride >= extent + before;
    return ceil && begins_behind ? positions - 1 : positions;
  }
  // The taps of the window at `position` that are on the axis.
  Range Taps(int64_t position, int64_t extent) const noexcept {
    const int64_t origin = position * stride - before;
    const int64_t begin = origin < 0 ? (-origin + dilation - 1) / dilation : 0;
    const int64_t end = origin < extent ? (extent - origin - 1) / dilation + 1 : 0;
    return {begin, end < kernel ? end : kernel};
  }
  // Where tap `tap` of the window at `position` is.
  int64_t InputOf(int64_t position, int64_t tap) const noexcept {
    return position * stride + tap * dilation - before;
  }
  // The positions in [begin, end) of `positions` whose tap `tap` is on the axis.
  Range Through(int64_t tap, int64_t extent, const Range& positions) const noexcept {
    const int64_t first = InputOf(0, tap), last = extent - 1 - first;
    const int64_t begin = first < 0 ? (-first + stride - 1) / stride : 0;
    const int64_t end = last < 0 ? 0 : last / stride + 1;
    return {begin > positions.begin ? begin : positions.begin,
            end < positions.end ? end : positions.end};
  }
  // Whether each of so many positions has a tap on the axis.
  bool Meets(int64_t positions, int64_t extent) const noexcept {
    for (int64_t i = 0; i < positions; ++i) {
      if (Taps(i, extent).size() == 0) return false;
    }
    return true;
  }
};

inline Status CheckPlane(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (op.IsActivation(0) && x.ndim == 4 && x.Count(1) >= 1) return {};
  return op.ActivationError(0, " (B, H, W, C), channels last");
}

// One over the rows and one over the columns of a plane (B, H, W, C), from attributes. A number is
// for both, two are for rows and columns; four of padding are top, left, bottom and right.
struct PlaneWindow {
  Window rows, columns;
  const char* wrong = nullptr;  // the attribute that is a list of another length

  void Read(const Options& attributes, const char* name, int64_t* of_rows,
            int64_t* of_columns) noexcept {
    const std::span<const int64_t> list = attributes.Ints(name);
    if (list.empty() || list.size() > 2) {
      wrong = name;
      return;
    }
    *of_rows = list.front();
    *of_columns = list.back();
  }
  PlaneWindow() noexcept = default;
  // A padding below 0 is that which keeps the size with stride 1 and an odd kernel, a stride of 0
  // the kernel.
  PlaneWindow(const Options& attributes, bool dilates) noexcept {
    Read(attributes, "kernel", &rows.kernel, &columns.kernel);
    Read(attributes, "stride", &rows.stride, &columns.stride);
    if (dilates) Read(attributes, "dilation", &rows.dilation, &columns.dilation);
    const std::span<const int64_t> list = attributes.Ints("padding");
    if (list.size() != 1 && list.size() != 2 && list.size() != 4) {
      wrong = "padding";
      return;
    }
    const size_t ends = list.size() > 1 ? 2 : 1;
    rows.before = list[0];
    columns.before = list[ends - 1];
    rows.after = list[list.size() - ends];
    columns.after = list.back();
    for (Window* const axis : {&rows, &columns}) {
      for (int64_t* const padding : {&axis->before, &axis->after}) {
        if (*padding < 0) *padding = axis->kernel / 2 * axis->dilation;
      }
      if (axis->stride == 0) axis->stride = axis->kernel;
    }
  }
  // The one window of all positions (1, count).
  explicit PlaneWindow(int64_t count) noexcept : columns{.kernel = count} {}

  int64_t taps() const noexcept { return rows.kernel * columns.kernel; }
  Shape Output(const Shape& x, int64_t channels, bool ceil = false) const noexcept {
    return {x[0], rows.Positions(x[1], ceil), columns.Positions(x[2], ceil), channels};
  }

  // kConfig unless x is a plane, and no list is wrong.
  Status Check(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(CheckPlane(op));
    if (wrong == nullptr) return {};
    return Status::Error(
        StatusCode::kConfig,
        "%s: '%s' is no list for a plane; it needs one number or two, for rows "
        "and columns%s",
        op.name, wrong,
        std::string_view(wrong) == "padding" ? ", or four, for top, left, bottom and right" : "");
  }
};

}  // namespace engine::kit
