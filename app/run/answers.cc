#include "app/run/answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

#include "core/base/hash.h"

namespace engine::run {
namespace {

template <typename... Words>
std::string Line(const char* kind, const std::string& name, const Words&... words) {
  return fmt::format("{} '{}': {}\n", kind, name, fmt::join({std::to_string(words)...}, " "));
}

std::string Text(const Shape& shape, DType dtype) {
  const auto extents = std::span(shape.dims).first(static_cast<size_t>(shape.ndim));
  return fmt::format("{} {} ", Name(dtype), fmt::join(extents, "x"));
}

uint64_t HashOf(const DatasetInfo& data) {
  std::string text;
  for (const auto& tensors : {data.inputs, data.targets}) {
    for (const SampleTensor& tensor : tensors) {
      text += Text(tensor.shape, tensor.dtype) + std::string(tensor.name);
      text += fmt::format(" {} {} ", static_cast<int>(tensor.content), tensor.classes);
    }
  }
  return base::HashOf(text);
}

// Of batches, whose sizes differ between ranks, what one sample has.
uint64_t HashOf(const graph::Graph& graph) {
  std::string text;
  for (const graph::Node& node : graph.nodes) {
    const OpSignature& op = node.signature;
    text +=
        fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} ", node.name, node.op_name,
                    op.differentiable_inputs, op.backward_reads_inputs, op.backward_reads_outputs,
                    op.accumulates, op.passes_gradient, op.equal_gradients, op.gradient_in_place,
                    op.output_is_view_of, op.in_place_of, op.uses_replicas);
    for (const graph::ValueId output : node.outputs) {
      TensorSpec spec = graph.values[output].spec;
      if (spec.batched != 0) spec.shape[0] /= graph.max_samples;
      text += Text(spec.shape, spec.dtype);
    }
  }
  for (const graph::Parameter& parameter : graph.parameters) {
    text += Text(parameter.shape, graph.values[parameter.value].spec.dtype);
    text += fmt::format("{} {} {} ", parameter.name, parameter.trainable, parameter.buffer);
  }
  return base::HashOf(text);
}

uint64_t HashOf(const exec::FlatLayout& layout) {
  std::string text = fmt::format("{}", fmt::join(layout.offset, " "));
  for (const exec::BucketLayout& bucket : layout.buckets) text += fmt::format(" {}", bucket.count);
  return base::HashOf(text);
}

}  // namespace

std::string AnswersOfPlugins(const train::RunConfig& config, const DatasetInfo& data,
                             const exec::Executor& executor) {
  const plugin::PluginSelection& chosen = config.plugins;
  const plugin::PluginSet& plugins = executor.plugins();
  const CommunicatorTraits moves = plugins.communicator->traits();
  const OptimizerTraits& updates = executor.updates().optimizer();
  std::string lines = Line("dataset", chosen.dataset.entry.name, data.train_samples,
                           data.held_out_samples, HashOf(data));
  lines += Line("model and ops of", chosen.model.entry.name, HashOf(executor.memory().graph()));
  lines += Line("communicator", chosen.communicator.entry.name, moves.kinds, moves.dtypes,
                moves.ordered, moves.max_in_flight, moves.no_op, moves.device_memory);
  lines += Line("optimizer", chosen.optimizer.entry.name, static_cast<int>(updates.gate),
                updates.state_count, updates.state_format_version);
  for (size_t i = 0; i < plugins.hooks.size(); ++i) {
    const HookTraits hook = plugins.hooks[i]->traits();
    lines += Line("hook", chosen.hooks[i].entry.name, static_cast<int>(hook.stage),
                  static_cast<int>(hook.scope));
  }
  if (const exec::Wire* const wire = executor.wire()) {
    lines += Line("hook", wire->layout().name, wire->state_count(), wire->layout().total_bytes);
  }
  lines +=
      Line("scheduler", chosen.scheduler.entry.name,
           static_cast<int>(plugins.scheduler->traits().order), HashOf(executor.memory().layout()));
  return lines + Line("what follows from", "all of it", executor.tasks().digest);
}

}  // namespace engine::run
