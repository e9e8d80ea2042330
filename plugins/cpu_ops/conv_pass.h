// The three passes of a convolution over channels-last tensors: x (B, H, W, C), weight (K, K, C, O)
// and y (B, H', W', O), all dense and row-major.
//
//   y[b, h, w, o] = bias[o]
//                   + sum over i, j, c of x[b, h s + i - p, w s + j - p, c] weight[i, j, c, o]
//
// with zeros outside of x. Positions are sorted by the taps that they meet (conv_axis.h), so that
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

// Computes a plane of targets for each sample from a plane of sources: y from x, or dx from dy.
class ConvPass {
 public:
  enum class Direction { kForward, kBackward };

  ConvPass() = default;
  // `input` and `output` are the planes of x and y in either direction.
  ConvPass(Direction direction, const Window& window, const Plane& input, const Plane& output);

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
  // 32 (or at the end fewer) channels of the target, with the weights that make them.
  struct Panel {
    int64_t first = 0, columns = 0;
    const float* weights = nullptr;
    int64_t stride = 0;  // between two source channels of a tap
    const float* bias = nullptr;
  };

  // What one thread computes: its samples, or its panels.
  struct Part {
    int64_t sample_begin, sample_end, panel_begin, panel_end;
  };

  int64_t panel_count() const noexcept;
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
  Window window_;
  Plane source_, target_;
  AxisPlan rows_, columns_;
};

// dweight (K, K, C, O) (+)= the sum over all positions of x and dy.
class ConvWeightPass {
 public:
  ConvWeightPass() = default;
  ConvWeightPass(const Window& window, const Plane& input, const Plane& output)
      : window_(window), input_(input), output_(output) {}

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

  // `count` taps of a row from `column` on, for a panel of channels of the output, and the columns
  // of outputs that meet all of them.
  struct Taps {
    int64_t row, column, count;
    int64_t channel;
    int64_t output_begin, output_end;
  };

  int64_t padded_channels() const noexcept { return (output_.channels + 15) / 16 * 16; }
  int64_t chunk_count(int64_t samples) const noexcept;
  Chunk ChunkAt(int64_t index, int64_t samples) const noexcept;
  bool Unmet(int64_t row, int64_t column) const noexcept;
  void ZeroUnmetTaps(float* dweight) const noexcept;
  void AddTapRow(const Call& call, const Chunk& chunk, int64_t row, int64_t channel,
                 bool sum) const noexcept;
  void AddTaps(const Call& call, const Chunk& chunk, const Taps& taps, bool sum) const noexcept;

  Window window_;
  Plane input_, output_;
};

}  // namespace engine::cpu_ops
