// An update is one pass over the inputs and the arrays, in blocks that stay in the first-level cache:
// the sum of a block of gradients, in the order of the inputs, and then the optimizer on that block.
// Elements do not depend on each other, so the blocks change no bits.
#include "served_task.h"

#include <algorithm>
#include <cstring>

#include "kit/reduce.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kBlock = 4096;  // elements

// Elements [begin, begin + count) of a cell.
struct Block {
  size_t begin;
  size_t count;
};

struct Scratch {
  alignas(64) float sum[kBlock];
  alignas(64) float dense[kBlock];
};

const char* DataOf(const ServedGradient& gradient, size_t element) noexcept {
  return static_cast<const char*>(gradient.data.data()) + element * sizeof(float);
}

// The rows of `gradient` that reach into the block, among zeros.
void Expand(const ServedGradient& gradient, size_t row, Block block, float* out) noexcept {
  std::memset(out, 0, block.count * sizeof(float));
  const std::vector<int32_t>& rows = gradient.rows;
  const size_t end = block.begin + block.count;
  auto next = std::lower_bound(rows.begin(), rows.end(), static_cast<int32_t>(block.begin / row));
  for (; next != rows.end() && static_cast<size_t>(*next) * row < end; ++next) {
    const size_t start = static_cast<size_t>(*next) * row;
    const size_t from = std::max(start, block.begin);
    const size_t to = std::min(start + row, end);
    const auto place = static_cast<size_t>(next - rows.begin()) * row;
    std::memcpy(out + (from - block.begin), DataOf(gradient, place + (from - start)),
                (to - from) * sizeof(float));
  }
}

bool IsAligned(const void* data) noexcept {
  return reinterpret_cast<uintptr_t>(data) % alignof(float) == 0;
}

// The sum of the inputs in the block, in their order. A sparse input adds zeros where it has no
// rows, as a dense one would: that turns -0 into 0.
const float* Sum(const UpdateTask& task, Block block, Scratch& scratch) noexcept {
  const ServedGradient& first = task.inputs.front();
  if (first.sparse) {
    Expand(first, task.spec->row, block, scratch.sum);
  } else {
    const char* const data = DataOf(first, block.begin);
    if (task.inputs.size() == 1 && IsAligned(data)) return reinterpret_cast<const float*>(data);
    std::memcpy(scratch.sum, data, block.count * sizeof(float));
  }
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(DType::kFloat32, Reduction::kSum);
  for (size_t i = 1; i < task.inputs.size(); ++i) {
    const ServedGradient& input = task.inputs[i];
    if (input.sparse) Expand(input, task.spec->row, block, scratch.dense);
    const void* const data =
        input.sparse ? static_cast<const void*>(scratch.dense) : DataOf(input, block.begin);
    kernels.fold(scratch.sum, data, block.count);
  }
  return scratch.sum;
}

// A place in the spans of a cell.
struct SpanCursor {
  const ServedSpan* span;
  size_t left;  // elements of it
};

// The optimizer is called for each part of a block that belongs to one parameter (a span).
Status Update(const UpdateTask& task, Block block, const float* gradient,
              SpanCursor& cursor) noexcept {
  for (size_t i = 0; i < task.arrays; ++i) {
    if (task.from[i] == task.to[i]) continue;
    std::memcpy(task.to[i] + block.begin, task.from[i] + block.begin, block.count * sizeof(float));
  }
  for (size_t done = 0; done < block.count;) {
    if (cursor.left == 0) {
      ++cursor.span;
      cursor.left = static_cast<size_t>(cursor.span->count);
    }
    const size_t count = std::min(cursor.left, block.count - done);
    UpdateCall call;
    call.value = task.to[0] + block.begin + done;
    call.gradient = gradient + done;
    for (size_t i = 1; i < task.arrays; ++i) call.states[i - 1] = task.to[i] + block.begin + done;
    call.count = static_cast<int64_t>(count);
    call.gradient_scale = task.gradient_scale;
    call.learning_rate = task.learning_rate;
    call.weight_decay_scale = cursor.span->weight_decay_scale;
    call.step = task.step;
    ENGINE_RETURN_IF_ERROR(task.optimizer->Update(call));
    cursor.left -= count;
    done += count;
  }
  return {};
}

Status RunBlocks(const UpdateTask& task) noexcept {
  Scratch scratch;
  const std::vector<ServedSpan>& spans = task.spec->spans;
  const uint64_t count = task.spec->slice.count;
  SpanCursor cursor{spans.data(), static_cast<size_t>(spans.front().count)};
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const Block block{begin, std::min(kBlock, count - begin)};
    ENGINE_RETURN_IF_ERROR(Update(task, block, Sum(task, block, scratch), cursor));
  }
  return {};
}

}  // namespace

size_t UpdateTask::bytes() const noexcept {
  return (inputs.size() + 2 * arrays) * spec->slice.bytes();
}

void Run(UpdateTask& task) noexcept {
  task.status = RunBlocks(task);
}

}  // namespace engine::zmq_ps
