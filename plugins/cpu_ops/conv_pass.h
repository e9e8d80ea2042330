// The three passes of a convolution over channels-last tensors: x (B, H, W, C), weight (KH, KW, C /
// groups, O) and y (B, H', W', O), all dense and row-major.
//
//   y[b, h, w, o] = bias[o]
//                   + sum over i, j, c of x[b, h s + i d - p, w s + j d - p, c] weight[i, j, c, o]
//
// with zeros outside of x; of each group of outputs c are the inputs of that group. Positions are sorted by the taps that they meet (conv_axis.h), so that
// padding costs nothing: no zero is multiplied, and of a 3x3 kernel over a 1x1 plane only the
// middle is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "conv_axis.h"
#include "conv_kernel.h"

namespace engine::cpu_ops {

// One side of a convolution, of one sample.
struct Plane {
  int64_t height = 0, width = 0, channels = 0;

  int64_t positions() const noexcept { return height * width; }
  int64_t count() const noexcept { return positions() * channels; }
};

// What a convolution goes from and to. `input` and `output` are the planes of x and y in any pass.
struct ConvGeometry {
  kit::PlaneWindow window;
  Plane input, output;
  int64_t groups = 1;

  // Channels of a group.
  int64_t inputs() const noexcept { return input.channels / groups; }
  int64_t outputs() const noexcept { return output.channels / groups; }
  int64_t weights() const noexcept { return window.taps() * inputs() * output.channels; }
};

// Computes a plane of targets for each sample from a plane of sources: y from x, or dx from dy.
class ConvPass {
 public:
  enum class Direction { kForward, kBackward };

  ConvPass() = default;
  ConvPass(Direction direction, const ConvGeometry& geometry);

  // Scratch of one thread in calls of at most so many samples.
  size_t workspace_bytes(int64_t samples) const noexcept;

  struct Call {
    const float* source = nullptr;
    const float* weight = nullptr;
    const float* bias = nullptr;  // null: none
    float* target = nullptr;
    int64_t samples = 0;
    bool sum = false;           // add to the target
    void* workspace = nullptr;  // of every thread
  };
  void Run(const Call& call, int32_t threads) const noexcept;

 private:
  // 32 (or at the end fewer) channels of one group of the target, with the weights that make them.
  struct Panel {
    int64_t group = 0, first = 0, columns = 0;
    const float* weights = nullptr;
    int64_t stride = 0;  // between two source channels of a tap
    const float* bias = nullptr;
  };

  // What one thread computes: its samples, or its panels.
  struct Part {
    int64_t sample_begin, sample_end, panel_begin, panel_end;
  };

  // Channels of a group.
  int64_t sources() const noexcept { return source_.channels / groups_; }
  int64_t targets() const noexcept { return target_.channels / groups_; }
  int64_t panels_of_group() const noexcept;
  int64_t panel_count() const noexcept { return groups_ * panels_of_group(); }
  int64_t panel_floats() const noexcept;
  int64_t block_count(int64_t samples) const noexcept;
  void RunPart(const Call& call, const Part& part, float* workspace) const noexcept;
  // Packs the weights into `workspace` unless they are there from an earlier time.
  Panel Prepare(const Call& call, int64_t index, float* workspace, bool pack = true) const noexcept;
  void Pack(const float* weight, const Panel& panel, float* packed) const noexcept;
  void RunPanel(const Call& call, const Panel& panel, int64_t begin, int64_t end) const noexcept;
  PanelProduct ProductOf(const Call& call, const Panel& panel, const AxisRun& row,
                         const AxisRun& column, int64_t begin, int64_t end) const noexcept;

  Direction direction_ = Direction::kForward;
  Plane source_, target_;
  int64_t groups_ = 1;
  AxisPlan rows_, columns_;
};

// dweight (KH, KW, C / groups, O) (+)= the sum over all positions of x and dy.
class ConvWeightPass {
 public:
  ConvWeightPass() = default;
  explicit ConvWeightPass(const ConvGeometry& geometry) : conv_(geometry) {}

  // Scratch of a call with so many samples.
  size_t workspace_bytes(int64_t samples) const noexcept;

  struct Call {
    const float* x = nullptr;
    const float* dy = nullptr;
    float* dweight = nullptr;
    int64_t samples = 0;
    bool sum = false;  // add to dweight
    void* workspace = nullptr;
  };
  void Run(const Call& call, int32_t threads) const noexcept;

 private:
  // Outputs that are taken together: small enough that they stay in the first-level cache while all
  // taps use them. Either some rows of one sample or some samples.
  struct Chunk {
    int64_t sample_begin, sample_end, row_begin, row_end;
  };

  // 32 (or at the end fewer) channels of one group of the output.
  struct Panel {
    int64_t group, first;
  };

  // `count` taps of a row from `column` on, and the columns of outputs that meet all of them.
  struct Taps {
    int64_t row, column, count;
    int64_t output_begin, output_end;
  };

  int64_t padded_outputs() const noexcept { return PaddedColumns(conv_.outputs()); }
  int64_t padded_channels() const noexcept { return conv_.groups * padded_outputs(); }
  int64_t chunk_count(int64_t samples) const noexcept;
  Chunk ChunkAt(int64_t index, int64_t samples) const noexcept;
  bool Unmet(int64_t row, int64_t column) const noexcept;
  void ZeroUnmetTaps(float* dweight) const noexcept;
  const float* PadOutputs(const Call& call) const noexcept;
  void AddTapRow(const Call& call, const Chunk& chunk, int64_t row, const Panel& panel,
                 bool sum) const noexcept;
  void AddTaps(const Call& call, const Chunk& chunk, const Panel& panel, const Taps& taps,
               bool sum) const noexcept;

  ConvGeometry conv_;
};

}  // namespace engine::cpu_ops
