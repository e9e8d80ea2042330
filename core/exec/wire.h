// Gradients that travel in another form (engine/ext/wire_format.h): where it lies, and its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/exec/executor_options.h"
#include "core/exec/model_memory.h"
#include "core/plugin/plugin_set.h"
#include "engine/communicator.h"
#include "engine/ext/wire_format.h"

namespace engine::exec {

struct Task;

// The hook that says how gradients travel, if there is one and something travels.
struct WireChoice {
  int32_t hook = graph::kNone;   // index in the chain
  WireFormat* format = nullptr;  // null: gradients travel as they are
  std::string name;              // of the hook
  WireTraits traits;

  bool packed() const { return traits.kind == WireKind::kPacked; }
  DType dtype() const { return packed() ? DType::kUint8 : traits.dtype; }  // of what travels
};

// kConfig when it does not go with the rest, kPlugin when the hook has no proper format. [setup]
Result<WireChoice> ChooseWire(plugin::PluginSet& plugins, const ExecutorOptions& options);

// How the buckets of a layout lie on the wire. The same on all ranks.
struct WireLayout : WireChoice {
  int64_t total_bytes = 0;
  std::vector<int64_t> bucket_begin;  // bytes, by bucket
  std::vector<int64_t> bucket_bytes;  // what travels of its gradients, as in TaskInfo::size_bytes
  std::vector<std::vector<int64_t>> span_begin;  // kPacked, by bucket: bytes in the block of a rank
};

// Of a choice with a format. kPlugin, naming the hook, when its numbers make no sense.
Result<WireLayout> PlanWire(const WireChoice& choice, const FlatLayout& layout, int32_t world_size);

// Lets `transfer`, whose count is that of all `elements`, move them in place: of a reduce-scatter or
// an all-gather what `rank` gives, and gets.
void MoveInPlace(void* elements, const RankInfo& rank, Transfer* transfer);

// The wire of one rank.
class Wire {
 public:
  // All is borrowed. `shared`, if not null, is where what travels is put.
  static Result<std::unique_ptr<Wire>> Create(const WireChoice& choice,
                                              const ExecutorOptions& options,
                                              const ModelMemory& memory, SharedMemory* shared);

  // Between the gradients and the wire, for the spans of `task`; `scale` as in WireCall.
  // [compute-lane]
  Status Pack(const Task& task, const float* scale, Stream* stream);
  Status Unpack(const Task& task, Stream* stream);
  // dtype, buffers and count of a transfer of gradients.
  void Describe(const Task& task, Transfer* transfer) const;

  const WireLayout& layout() const { return layout_; }
  int32_t state_count() const { return static_cast<int32_t>(states_.size()); }
  // trainable_count elements, in the layout of the arena.
  float* state(int32_t index) const { return states_[index].f32(); }

 private:
  Wire(WireLayout layout, const ModelMemory& memory, const ExecutorOptions& options)
      : layout_(std::move(layout)), memory_(memory), options_(options) {}
  size_t CallsFor(const Task& task) const;
  WireCall CallOf(const Task& task, size_t i, int32_t rank, Stream* stream) const;

  const WireLayout layout_;
  const ModelMemory& memory_;
  const ExecutorOptions& options_;
  graph::DeviceBuffer wire_;
  std::vector<graph::DeviceBuffer> states_;
};

}  // namespace engine::exec
