// Runs in which servers update the parameters: what they are told, and what travels.

#include <xxhash.h>

#include <algorithm>

#include "core/exec/executor.h"

namespace engine {

Status Executor::CheckServed(const Graph& graph, const Program& program) const {
  const auto refuse = [&](const std::string& what, const char* advice) {
    return Status::Error(StatusCode::kConfig,
                         "%s, but communicator '%s' leaves updates to its servers: %s",
                         what.c_str(), options_.communicator_name.c_str(), advice);
  };
  constexpr const char* kOnRanks = "let the ranks update (its option update), or drop it";
  for (size_t i = 0; i < hook_traits_.size(); ++i) {
    if (hook_traits_[i].stage == HookStage::kLocal) continue;
    const bool wire = hook_traits_[i].stage == HookStage::kWire;
    const char* const what = wire ? "' sends gradients in another form than float32"
                                  : "' works on the sums of gradients";
    return refuse("hook '" + options_.hook_names[i] + what, kOnRanks);
  }
  if (optimizer_traits_.gate != UpdateGate::kSpan) {
    return refuse("optimizer '" + options_.optimizer_name + "' cannot update a part of a parameter",
                  "let the ranks update (its option update), or choose another optimizer");
  }
  if (options_.shard_optimizer) {
    return refuse("train.shard_optimizer gives each rank a part of the updates", "set it to false");
  }
  if (options_.loss_scale < 1) {
    return refuse("train.loss_scale is less than 1", "set it to 1 or more");
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (parameter.learning_rate_scale == 1 || program.of_parameter[i] == kNone) continue;
    return refuse("'" + parameter.name + "' has a learning_rate_scale of its own",
                  "let the ranks update (its option update), or set it to 1");
  }
  return {};
}

uint64_t Executor::KeyOfUnit(int32_t unit) const {
  const uint64_t identity[3] = {tasks_.digest, UINT64_MAX, static_cast<uint64_t>(unit)};
  return XXH3_64bits(identity, sizeof(identity)) | 1;
}

int64_t Executor::RowsOf(int32_t unit) const {
  if (!has_row_tables_) return 0;
  const FlatLayout& layout = memory_->layout();
  const int32_t parameter = layout.parameters[layout.units[unit].spans[0].parameter];
  return memory_->graph().parameters[parameter].row_elements;
}

// Of a table its rows; else with the padding, which is zero and stays so.
int64_t Executor::ServedCount(int32_t unit) const {
  const UnitLayout& layout = memory_->layout().units[unit];
  return RowsOf(unit) > 0 ? layout.spans[0].count : layout.count;
}

std::vector<ServedSpan> Executor::SpansOf(const UnitLayout& unit) const {
  std::vector<ServedSpan> spans;
  int64_t covered = 0;
  for (const UnitSpan& span : unit.spans) {
    const int32_t index = memory_->layout().parameters[span.parameter];
    const int64_t begin = memory_->layout().offset[index] + span.offset - unit.offset;
    if (!spans.empty()) spans.back().count += begin - covered;
    spans.push_back({.count = span.count,
                     .weight_decay_scale = memory_->graph().parameters[index].DecayScale()});
    covered = begin + span.count;
  }
  spans.back().count += unit.count - covered;
  return spans;
}

Status Executor::RegisterUnits() {
  const FlatLayout& layout = memory_->layout();
  std::vector<std::vector<ServedSpan>> spans;
  std::vector<ServedUnit> units;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const auto unit = static_cast<int32_t>(u);
    spans.push_back(SpansOf(layout.units[u]));
    spans.back().back().count -= layout.units[u].count - ServedCount(unit);
    units.push_back({.key = KeyOfUnit(unit),
                     .count = ServedCount(unit),
                     .spans = spans.back(),
                     .row = RowsOf(unit)});
  }
  return client_->Register(units, *plugins_.optimizer, options_.timeout_ms)
      .WithContext("telling the servers what they keep");
}

Status Executor::SetServedState(int32_t index, std::span<const float> arena) {
  ENGINE_CHECK(static_cast<int64_t>(arena.size()) == memory_->layout().trainable_count,
               "a state of %zu elements", arena.size());
  if (collected_.empty()) {
    ENGINE_RETURN_IF_ERROR(AllocateCollected(memory_->layout().trainable_count));
  }
  return memory_->device().Copy(collected_[index].data(), arena.data(), arena.size_bytes(),
                                memory_->stream());
}

// States first: once a unit has values, other ranks go on.
Status Executor::StoreUnits() {
  for (size_t s = 0; s < collected_.size(); ++s) {
    ENGINE_RETURN_IF_ERROR(StoreArena(static_cast<int32_t>(s), collected_[s].f32()));
  }
  collected_.clear();
  return StoreArena(-1, memory_->parameters());
}

Status Executor::StoreArena(int32_t state, const float* arena) {
  const std::vector<UnitLayout>& units = memory_->layout().units;
  for (size_t u = 0; u < units.size(); ++u) {
    ENGINE_RETURN_IF_ERROR(client_
                               ->Store(KeyOfUnit(static_cast<int32_t>(u)), state,
                                       arena + units[u].offset, options_.timeout_ms)
                               .WithContext("giving the servers what they keep"));
  }
  return {};
}

Status Executor::LoadUnits(bool row_tables_only) {
  const FlatLayout& layout = memory_->layout();
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const auto unit = static_cast<int32_t>(u);
    if (row_tables_only && RowsOf(unit) == 0) continue;
    ENGINE_RETURN_IF_ERROR(client_
                               ->Load(KeyOfUnit(unit), -1,
                                      memory_->parameters() + layout.units[u].offset,
                                      options_.timeout_ms)
                               .WithContext("parameters of the servers"));
  }
  rows_stale_ = false;
  return {};
}

Status Executor::CollectServedStates() {
  if (options_.rank.rank != 0) return {};
  const FlatLayout& layout = memory_->layout();
  ENGINE_RETURN_IF_ERROR(AllocateCollected(layout.trainable_count));
  for (int32_t s = 0; s < optimizer_traits_.state_count; ++s) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      ENGINE_RETURN_IF_ERROR(client_
                                 ->Load(KeyOfUnit(static_cast<int32_t>(u)), s,
                                        collected_[s].f32() + layout.units[u].offset,
                                        options_.timeout_ms)
                                 .WithContext("collecting optimizer states"));
    }
  }
  return {};
}

Status Executor::Meet(int64_t timeout_ms) {
  ENGINE_RETURN_IF_ERROR(RunAlone({.kind = TransferKind::kBarrier}, timeout_ms)
                             .WithContext("waiting for the other ranks at the end"));
  return LoadUnits(/*row_tables_only=*/false);
}

Result<int64_t> Executor::NextStep() {
  uint64_t last = 0;
  ENGINE_RETURN_IF_ERROR(client_->LastStep(options_.timeout_ms, &last));
  return static_cast<int64_t>(last) + 1;
}

// The rows that a batch reads are those whose numbers it holds.
void Executor::ChooseRows(const StepInput& input) {
  const Graph& graph = memory_->graph();
  const Shape& shape = graph.values[graph.input].spec.shape;
  const int64_t count = input.samples * (shape.Count() / std::max<int64_t>(shape.dims[0], 1));
  const auto* const ids = static_cast<const int32_t*>(input.input);
  std::vector<int32_t>& rows = rows_[input.step % 2];
  rows.assign(ids, ids + count);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
}

void Executor::MakeServedTransfer(const Task& task, Transfer* transfer) {
  const auto unit = static_cast<int32_t>(task.info.unit);
  const int64_t offset = memory_->layout().units[unit].offset;
  transfer->key = KeyOfUnit(unit);
  transfer->count = ServedCount(unit);
  if (task.info.transfer == TransferKind::kPush) {
    transfer->send = memory_->gradients() + offset;
  } else {
    transfer->recv = memory_->parameters() + offset;
  }
  if (RowsOf(unit) == 0) return;
  const std::vector<int32_t>& rows = rows_[state_->StepOf(task) % 2];
  transfer->rows = rows.data();
  transfer->row_count = static_cast<int64_t>(rows.size());
}

// Gradients are sums over the targets of this rank, times the scale of the loss.
Status Executor::BeginServedStep() {
  rows_stale_ = has_row_tables_;
  float weight = 0;
  {
    const std::lock_guard lock(mutex_);
    weight = own_count_ >= 0 ? own_count_ : memory_->statistics()->count;
    if (own_pace_) {
      statistics_ = *memory_->statistics();
      statistics_known_ = true;
    }
  }
  return client_->BeginStep(
      {.step = tail_step_, .learning_rate = tail_rate_, .weight = weight * options_.loss_scale});
}

}  // namespace engine
