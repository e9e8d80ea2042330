#include "app/run/dry_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "app/config/learning_rate.h"
#include "app/plugins/roles.h"
#include "app/run/run_length.h"
#include "app/run/training.h"
#include "kit/describe.h"

namespace engine::run {
namespace {

std::string Bytes(double bytes) {
  return kit::SizeText(bytes).c_str();
}

std::string Text(const TensorSpec& spec) {
  const auto extents = std::span(spec.shape.dims).first(static_cast<size_t>(spec.shape.ndim));
  return fmt::format("{} {}", Name(spec.dtype), fmt::join(extents, "x"));
}

// A line per call. What two layers share, a table or memory (a view, an op in place), counts for the first.
std::string Layers(const exec::ModelMemory& memory) {
  const graph::Graph& graph = memory.graph();
  const graph::MemoryPlan& plan = memory.plan();
  std::set<int32_t> counted;  // parameters
  std::set<graph::StorageId> kept;
  int64_t total = 0;
  const auto bytes_of = [&](graph::StorageId id) {
    const bool is_new = id != graph::kNone && kept.insert(id).second;
    const graph::Storage* const storage = is_new ? &plan.storages[id] : nullptr;
    return storage && storage->kind == graph::StorageKind::kArena ? storage->size_bytes : 0;
  };
  std::string text = fmt::format("{:24} {:22} {:28} {:>13} {:>12}\n", "layer", "op", "output",
                                 "parameters", "activations");
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const graph::Node& node = graph.nodes[n];
    int64_t elements = 0;
    for (const graph::ValueId input : node.inputs) {
      const int32_t index = graph.values[input].parameter;
      if (index == graph::kNone || !counted.insert(index).second) continue;
      elements += graph.parameters[index].shape.Count();
    }
    size_t bytes = bytes_of(plan.of_saved[n]);
    for (const graph::ValueId output : node.outputs) bytes += bytes_of(plan.of_value[output]);
    text += fmt::format("{:24} {:22} {:28} {:13} {:>12}\n", node.name, node.op_name,
                        Text(graph.values[node.outputs[0]].spec), elements,
                        Bytes(static_cast<double>(bytes)));
    total += elements;
  }
  return text + fmt::format("{:76} {:13}\n", "together", total);
}

int64_t SampleBytes(const DatasetInfo& data) {
  int64_t bytes = 0;
  for (const auto& tensors : {data.inputs, data.targets}) {
    for (const SampleTensor& tensor : tensors) {
      bytes += tensor.shape.Count() * static_cast<int64_t>(SizeOf(tensor.dtype));
    }
  }
  return bytes;
}

// Of a rank. Activations share memory where their times do not overlap, so they are fewer than those of all
// layers together.
std::string Memory(const train::RunConfig& run, train::Trainer& trainer, int32_t ranks,
                   int64_t share) {
  const exec::ModelMemory& memory = trainer.executor().memory();
  const exec::FlatLayout& layout = memory.layout();
  const bool served = trainer.executor().updates().served() != nullptr;
  const int32_t states = served ? 0 : trainer.executor().updates().optimizer().state_count;
  const auto trained = static_cast<double>(4 * layout.trainable_count);
  const double copies =
      memory.copy_at(0) == nullptr ? 0 : 2.0 * static_cast<double>(layout.total_count);
  const std::pair<const char*, double> parts[] = {
      {"parameters", 4.0 * static_cast<double>(layout.total_count) + copies},
      {"gradients", trained},
      {"optimizer states", states * trained / (run.train.shard_optimizer ? ranks : 1)},
      {"activations and their gradients", static_cast<double>(memory.plan().arena_bytes)},
      {"workspace", static_cast<double>(memory.plan().workspace_bytes)},
      {"batches",
       static_cast<double>(memory.plan().input_bytes) +
           static_cast<double>((run.data.prefetch + 1) * share * SampleBytes(trainer.data()))}};
  std::string text = "memory of a rank, without what plugins have of their own:\n";
  double sum = 0;
  for (const auto& [name, bytes] : parts) {
    text += fmt::format("  {:32} {:>10}\n", name, Bytes(bytes));
    sum += bytes;
  }
  return text + fmt::format("  {:32} {:>10}\n", "together", Bytes(sum));
}

std::string Every(int64_t every) {
  return every > 0 ? fmt::format("every {} steps and at the end", every) : "at the end";
}

// Where the curve bends, and its ends.
std::string Rates(const train::RunConfig& run, int64_t steps, int64_t per_epoch) {
  std::set<int64_t> at = {1, steps};
  if (const auto* rate = run.train.learning_rate.target<config::LearningRate>()) {
    for (const auto& point : rate->points) {
      const double step = rate->StepOf(point, steps, per_epoch);
      if (step >= 1 && step < static_cast<double>(steps)) at.insert(static_cast<int64_t>(step));
    }
  }
  std::vector<std::string> rates;
  for (const int64_t step : at) {
    rates.push_back(
        fmt::format("{:.3g} at step {}", run.train.learning_rate(step, steps, per_epoch), step));
  }
  return fmt::format("learning rate: {}\n", fmt::join(rates, ", "));
}

std::string Schedule(const config::Config& config, const DatasetInfo& data, int64_t steps,
                     int64_t batch) {
  const train::TrainOptions& train = config.run().train;
  const int64_t per_epoch = train::CeilDiv(data.train_samples, batch);
  std::string text = fmt::format(
      "schedule: {} steps of {} samples, {} steps in an epoch of {} samples: {:.2f} epochs\n",
      steps, batch, per_epoch, data.train_samples,
      static_cast<double>(steps) / static_cast<double>(per_epoch));
  text += Rates(config.run(), steps, per_epoch);
  const int64_t held_out = train.evaluate_samples > 0
                               ? std::min(train.evaluate_samples, data.held_out_samples)
                               : data.held_out_samples;
  text += train.evaluate_every < 0 || held_out == 0
              ? "evaluations: none\n"
              : fmt::format("evaluations: {}, on {} of {} held-out samples\n",
                            Every(train.evaluate_every), held_out, data.held_out_samples);
  const config::OutputOptions& output = config.output();
  text += output.checkpoint.empty() ? "checkpoints: none\n"
                                    : fmt::format("checkpoints: {}, to {}\n",
                                                  Every(train.checkpoint_every), output.checkpoint);
  return output.best_checkpoint.empty()
             ? text
             : text + "best checkpoint: to " + output.best_checkpoint + "\n";
}

// The first ranks have a sample more where they are not divided evenly.
std::string Shares(const DatasetInfo& data, int64_t batch, int32_t ranks) {
  const int64_t share = batch / ranks, larger = batch % ranks;
  std::string text = "data: " + std::string(data.name) + "\n";
  const auto line = [&](int64_t from, int64_t to, int64_t samples) {
    if (from == to) return;
    const double part = static_cast<double>(samples) / static_cast<double>(batch);
    text += fmt::format(
        "  {}: {} samples of a step ({}), about {:.0f} of an epoch\n",
        to - from == 1 ? fmt::format("rank {}", from) : fmt::format("ranks {} to {}", from, to - 1),
        samples, Bytes(static_cast<double>(samples * SampleBytes(data))),
        part * static_cast<double>(data.train_samples));
  };
  line(0, larger, share + 1);
  line(larger, ranks, share);
  return text;
}

}  // namespace

Result<std::string> DryRun(const config::Config& config, base::RankContext& rank, int32_t ranks,
                           const std::string& resume) {
  const train::RunConfig& run = config.run();
  const int64_t batch = run.train.GlobalBatch(ranks);
  const int64_t share = train::CeilDiv(batch, ranks);
  const config::Config of_rank = config.WithGlobalBatch(share);
  RunObserver silent;
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                          MakeTrainer(of_rank, rank, silent, nullptr, resume));
  const DatasetInfo data = trainer->data();
  const TrainingAmount amount = AmountOf(data, batch);
  ENGINE_ASSIGN_OR_RETURN(const int64_t steps, LastStep(run.train.length, amount, {}));
  std::string text = Layers(trainer->executor().memory());
  for (const std::string& name : trainer->executor().unreached_parameters()) {
    text += "not trained, as the loss does not depend on it: " + name + "\n";
  }
  return text + Memory(run, *trainer, ranks, share) + Schedule(config, data, steps, batch) +
         Shares(data, batch, ranks) + "plugins: " + plugins::NamesOf(run.plugins) + "\n";
}

}  // namespace engine::run
