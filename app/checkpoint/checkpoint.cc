#include "app/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <sstream>
#include <utility>

namespace engine::checkpoint {
namespace {

constexpr char kFormat[] = "engine.checkpoint/1";
constexpr int64_t kCopyTimeoutMs = 60000;
constexpr char kStatePrefix[] = "optimizer/";
constexpr char kHookPrefix[] = "hook/";

// Host copies of device tensors, under their names.
class Snapshot {
 public:
  Snapshot(const exec::ModelMemory& memory, int64_t capacity) : memory_(memory) {
    values_.reserve(static_cast<size_t>(capacity));
  }

  Status Add(std::string name, const TensorView& view) {
    const size_t begin = values_.size();
    const auto count = static_cast<size_t>(view.count());
    ENGINE_CHECK(begin + count <= values_.capacity(), "the snapshot is too small");
    values_.resize(begin + count);
    TensorView copy = view;
    copy.data = values_.data() + begin;
    tensors_.push_back({std::move(name), copy});
    return memory_.device().Copy(copy.data, view.data, view.size_bytes(), memory_.stream());
  }

  Status Finish() { return memory_.stream()->Synchronize(kCopyTimeoutMs); }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  const exec::ModelMemory& memory_;
  std::vector<float> values_;
  std::vector<NamedTensor> tensors_;
};

// A run that has diverged must not replace what it had before.
Status CheckFinite(const std::vector<NamedTensor>& tensors, int64_t step) {
  for (const NamedTensor& tensor : tensors) {
    const auto* const values = static_cast<const float*>(tensor.view.data);
    const auto finite = [](float value) { return std::isfinite(value); };
    if (std::all_of(values, values + tensor.view.count(), finite)) continue;
    return Status::Error(StatusCode::kConfig,
                         "training diverged: '%s' is not finite after step %lld, so no checkpoint "
                         "of it is written; lower train.learning_rate.base, or add the hook "
                         "clip_norm",
                         tensor.name.c_str(), static_cast<long long>(step));
  }
  return {};
}

std::string StateName(const OptimizerTraits& traits, int32_t state, const std::string& parameter) {
  return kStatePrefix + std::string(traits.state_names[state].view()) + "/" + parameter;
}

bool IsState(const std::string& name) {
  return name.starts_with(kStatePrefix);
}

bool IsHookState(const std::string& name) {
  return name.starts_with(kHookPrefix);
}

std::string HookStateName(const exec::Executor& executor, int32_t state, int32_t rank,
                          const std::string& parameter) {
  return fmt::format("{}{}/{}/{}/{}", kHookPrefix, executor.wire_hook_name(),
                     executor.wire()->layout().traits.state_names[state].view(), rank, parameter);
}

// Hook and state.
using HookState = std::pair<std::string, std::string>;

// Those that this run keeps, in their order.
std::vector<HookState> HookStatesOf(const exec::Executor& executor) {
  std::vector<HookState> states;
  for (int32_t s = 0; executor.wire() != nullptr && s < executor.wire()->state_count(); ++s) {
    const auto& name = executor.wire()->layout().traits.state_names[s];
    states.emplace_back(executor.wire_hook_name(), name.view());
  }
  return states;
}

std::set<HookState> HookStatesIn(const SafetensorsFile& file) {
  std::set<HookState> states;
  for (const NamedTensor& tensor : file.tensors()) {
    if (!IsHookState(tensor.name)) continue;
    std::istringstream parts(tensor.name.substr(sizeof(kHookPrefix) - 1));
    HookState state;
    std::getline(parts, state.first, '/');
    std::getline(parts, state.second, '/');
    states.insert(std::move(state));
  }
  return states;
}

// Those of all ranks, collected: in host memory of the executor.
void AddHookStates(const exec::Executor& executor, int32_t world_size,
                   std::vector<NamedTensor>* tensors) {
  const auto& parameters = executor.memory().graph().parameters;
  for (int32_t s = 0; executor.wire() != nullptr && s < executor.wire()->state_count(); ++s) {
    for (int32_t rank = 0; rank < world_size; ++rank) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        const TensorView view = executor.wire()->state_of(static_cast<int32_t>(i), rank, s);
        if (view.data == nullptr) continue;
        tensors->push_back({HookStateName(executor, s, rank, parameters[i].name), view});
      }
    }
  }
}

// The sum over `ranks` of what is stored of one state of a parameter, checked.
Result<std::vector<float>> SumOfHookStates(const SafetensorsFile& file,
                                           const exec::Executor& executor, int32_t state,
                                           const graph::Parameter& parameter,
                                           std::span<const int32_t> ranks) {
  std::vector<float> sum;
  for (const int32_t rank : ranks) {
    const std::string name = HookStateName(executor, state, rank, parameter.name);
    ENGINE_ASSIGN_OR_RETURN(const TensorView stored, file.Find(name));
    if (!(stored.shape == parameter.shape) || stored.dtype != DType::kFloat32) {
      return Status::Error(StatusCode::kBadData,
                           "'%s' has another shape in the checkpoint than in this model",
                           name.c_str());
    }
    const std::span<const float> values(stored.f32(), static_cast<size_t>(stored.count()));
    if (sum.empty()) {
      sum.assign(values.begin(), values.end());
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

// Reads numbers of the metadata; remembers whether one was malformed.
class Metadata {
 public:
  explicit Metadata(const std::map<std::string, std::string>& values) : values_(values) {}

  std::string Text(const char* key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? std::string() : found->second;
  }

  // One that is not there is 0, unless `required`.
  template <typename Number>
  void Read(const char* key, Number* number, bool required = false) {
    const std::string text = Text(key);
    if (text.empty() && !required) return;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *number);
    // from_chars takes a sign for signed types only; nothing here may be negative.
    const bool whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
    good_ = good_ && whole && *number >= 0;
  }

  bool good() const { return good_; }

 private:
  const std::map<std::string, std::string>& values_;
  bool good_ = true;
};

// The stored state of one parameter, checked; host memory of the file.
Result<TensorView> FindState(const OpenedCheckpoint& checkpoint, const OptimizerTraits& traits,
                             int32_t state, const graph::Parameter& parameter) {
  if (checkpoint.state_format_version != traits.state_format_version) {
    return Status::Error(StatusCode::kBadData,
                         "the states of optimizer '%s' in the checkpoint have format %u, and its "
                         "plugin reads format %u: use the version of the plugin that wrote them",
                         checkpoint.info.optimizer.c_str(), checkpoint.state_format_version,
                         traits.state_format_version);
  }
  const std::string name(traits.state_names[state].view());
  auto stored = checkpoint.file->Find(StateName(traits, state, parameter.name));
  if (!stored.ok()) {
    return Status::Error(StatusCode::kBadData,
                         "the checkpoint has no '%s' of optimizer '%s' for parameter '%s': its run "
                         "did not train it, or had other options of the optimizer",
                         name.c_str(), checkpoint.info.optimizer.c_str(), parameter.name.c_str());
  }
  if (stored->shape == parameter.shape && stored->dtype == DType::kFloat32) return stored;
  return Status::Error(StatusCode::kBadData,
                       "'%s' of parameter '%s' has another shape in the checkpoint than in this "
                       "model",
                       name.c_str(), parameter.name.c_str());
}

// Calls `visit` for state `index` of every parameter that has one.
Status ForEachState(
    const OpenedCheckpoint& checkpoint, const exec::ModelMemory& memory,
    const OptimizerTraits& traits, int32_t index,
    const std::function<Status(int64_t offset, int64_t count, const float* values)>& visit) {
  const auto& parameters = memory.graph().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (memory.program().of_parameter[i] == graph::kNone) continue;
    ENGINE_ASSIGN_OR_RETURN(const TensorView stored,
                            FindState(checkpoint, traits, index, parameters[i]));
    ENGINE_RETURN_IF_ERROR(visit(memory.layout().offset[i], stored.count(), stored.f32()));
  }
  return {};
}

}  // namespace

Status WriteCheckpoint(const std::string& path, const exec::Executor& executor,
                       const CheckpointInfo& info, std::function<void()> progress) {
  ENGINE_CHECK(executor.flushed(), "a checkpoint while updates are under way");
  const exec::ModelMemory& memory = executor.memory();
  const OptimizerTraits traits = executor.updates().optimizer();
  const exec::FlatLayout& layout = memory.layout();
  Snapshot snapshot(memory, layout.total_count + traits.state_count * layout.trainable_count);
  const auto& parameters = memory.graph().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    ENGINE_RETURN_IF_ERROR(
        snapshot.Add(parameters[i].name, memory.parameter(static_cast<int32_t>(i))));
  }
  for (int32_t s = 0; s < traits.state_count; ++s) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const TensorView state = executor.updates().state(static_cast<int32_t>(i), s);
      if (state.data == nullptr) continue;
      ENGINE_RETURN_IF_ERROR(snapshot.Add(StateName(traits, s, parameters[i].name), state));
    }
  }
  ENGINE_RETURN_IF_ERROR(snapshot.Finish());
  std::vector<NamedTensor> tensors = snapshot.tensors();
  AddHookStates(executor, info.world_size, &tensors);
  ENGINE_RETURN_IF_ERROR(CheckFinite(tensors, info.step));
  return WriteSafetensors(path, tensors,
                          {{"format", kFormat},
                           {"step", std::to_string(info.step)},
                           {"config", info.config},
                           {"optimizer", info.optimizer},
                           {"optimizer_state_version", std::to_string(traits.state_format_version)},
                           {"seed", std::to_string(info.seed)},
                           {"world_size", std::to_string(info.world_size)},
                           {"global_batch", std::to_string(info.global_batch)},
                           {"data", info.data},
                           {"epoch", std::to_string(info.position.epoch)},
                           {"epoch_samples", std::to_string(info.position.samples)}},
                          std::move(progress));
}

Result<OpenedCheckpoint> OpenCheckpoint(const std::string& path) {
  OpenedCheckpoint opened;
  ENGINE_ASSIGN_OR_RETURN(opened.file, SafetensorsFile::Open(path));
  Metadata metadata(opened.file->metadata());
  CheckpointInfo& info = opened.info;
  info.config = metadata.Text("config");
  info.optimizer = metadata.Text("optimizer");
  info.data = metadata.Text("data");
  opened.digest = metadata.Text("digest");
  metadata.Read("step", &info.step, true);
  metadata.Read("optimizer_state_version", &opened.state_format_version);
  metadata.Read("seed", &info.seed);
  metadata.Read("world_size", &info.world_size);
  metadata.Read("global_batch", &info.global_batch);
  metadata.Read("epoch", &info.position.epoch);
  metadata.Read("epoch_samples", &info.position.samples);
  if (metadata.Text("format") != kFormat || !metadata.good() || info.config.empty()) {
    return Status::Error(StatusCode::kBadData,
                         "%s: not a checkpoint of this engine (its metadata is not that of '%s')",
                         path.c_str(), kFormat);
  }
  return opened;
}

Status LoadParameters(const SafetensorsFile& file, exec::ModelMemory& memory) {
  const auto& parameters = memory.graph().parameters;
  std::set<std::string> names;
  for (const graph::Parameter& parameter : parameters) names.insert(parameter.name);
  for (const NamedTensor& tensor : file.tensors()) {
    if (IsState(tensor.name) || IsHookState(tensor.name) || names.contains(tensor.name)) continue;
    return Status::Error(StatusCode::kBadData,
                         "the checkpoint is of another model: this one has no parameter '%s'",
                         tensor.name.c_str());
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const TensorView stored, file.Find(parameters[i].name));
    const TensorView view = memory.parameter(static_cast<int32_t>(i));
    if (!(stored.shape == view.shape) || stored.dtype != view.dtype) {
      return Status::Error(StatusCode::kBadData,
                           "parameter '%s' has another shape in the checkpoint than in its model",
                           parameters[i].name.c_str());
    }
    ENGINE_RETURN_IF_ERROR(
        memory.device().Copy(view.data, stored.data, view.size_bytes(), memory.stream()));
  }
  ENGINE_RETURN_IF_ERROR(memory.RefreshCopies());
  return memory.stream()->Synchronize(kCopyTimeoutMs);
}

Result<std::vector<float>> ReadStates(const OpenedCheckpoint& checkpoint,
                                      const exec::ModelMemory& memory,
                                      const OptimizerTraits& traits, int32_t index) {
  std::vector<float> states(static_cast<size_t>(memory.layout().trainable_count));
  ENGINE_RETURN_IF_ERROR(
      ForEachState(checkpoint, memory, traits, index,
                   [&](int64_t offset, int64_t count, const float* values) -> Status {
                     std::copy_n(values, count, states.begin() + offset);
                     return {};
                   }));
  return states;
}

Status LoadStates(const OpenedCheckpoint& checkpoint, const exec::ModelMemory& memory,
                  const OptimizerTraits& traits, const RankInfo& rank,
                  const exec::OptimizerStates& states) {
  const auto copy = [&](float* to, const float* from, int64_t count) {
    return memory.device().Copy(to, from, static_cast<size_t>(count) * sizeof(float),
                                memory.stream());
  };
  for (int32_t s = 0; s < states.count(); ++s) {
    const auto whole = [&](int64_t offset, int64_t count, const float* values) {
      return copy(states.At(s, graph::kNone, offset), values, count);
    };
    // Where the tensor at [offset, offset + count) meets this rank's part of each bucket.
    const auto part = [&](int64_t offset, int64_t count, const float* values) -> Status {
      for (size_t u = 0; u < memory.layout().buckets.size(); ++u) {
        const exec::BucketLayout& bucket = memory.layout().buckets[u];
        const int64_t size = bucket.count / rank.world_size;
        const int64_t first = bucket.offset + rank.rank * size;
        const int64_t begin = std::max(offset, first);
        const int64_t end = std::min(offset + count, first + size);
        if (begin >= end) continue;
        ENGINE_RETURN_IF_ERROR(copy(states.At(s, static_cast<int32_t>(u), begin),
                                    values + (begin - offset), end - begin));
      }
      return {};
    };
    ENGINE_RETURN_IF_ERROR(states.sharded() ? ForEachState(checkpoint, memory, traits, s, part)
                                            : ForEachState(checkpoint, memory, traits, s, whole));
  }
  // The file may be closed after this.
  return memory.stream()->Synchronize(kCopyTimeoutMs);
}

Status LoadHookStates(const OpenedCheckpoint& checkpoint, const exec::Executor& executor,
                      const RankInfo& rank) {
  const SafetensorsFile& file = *checkpoint.file;
  const std::vector<HookState> states = HookStatesOf(executor);
  const std::set<HookState> stored = HookStatesIn(file);
  std::vector<int32_t> ranks = {rank.rank};
  if (checkpoint.info.world_size != rank.world_size) {
    if (rank.rank != 0) return {};
    ranks.resize(static_cast<size_t>(checkpoint.info.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const exec::ModelMemory& memory = executor.memory();
  for (size_t index = 0; index < states.size(); ++index) {
    const auto s = static_cast<int32_t>(index);
    for (size_t i = 0; i < memory.graph().parameters.size(); ++i) {
      const bool trained = memory.program().of_parameter[i] != graph::kNone;
      if (!trained || !stored.contains(states[index])) continue;
      ENGINE_ASSIGN_OR_RETURN(
          const std::vector<float> values,
          SumOfHookStates(file, executor, s, memory.graph().parameters[i], ranks));
      ENGINE_RETURN_IF_ERROR(
          memory.device().Copy(executor.wire()->state(s) + memory.layout().offset[i], values.data(),
                               values.size() * sizeof(float), memory.stream()));
      ENGINE_RETURN_IF_ERROR(memory.stream()->Synchronize(kCopyTimeoutMs));
    }
  }
  return {};
}

std::vector<std::string> HookStateWarnings(const OpenedCheckpoint& checkpoint,
                                           const exec::Executor& executor, int32_t world_size) {
  std::vector<std::string> warnings;
  const std::vector<HookState> used = HookStatesOf(executor);
  const std::set<HookState> stored = HookStatesIn(*checkpoint.file);
  for (const auto& state : stored) {
    if (std::find(used.begin(), used.end(), state) != used.end()) continue;
    warnings.push_back(
        fmt::format("this run has no use for '{}' of hook '{}' in the checkpoint: it is dropped",
                    state.second, state.first));
  }
  for (const auto& state : used) {
    if (!stored.contains(state)) {
      warnings.push_back(
          fmt::format("the checkpoint has no '{}' of hook '{}': it begins with zeros", state.second,
                      state.first));
    } else if (checkpoint.info.world_size != world_size) {
      warnings.push_back(fmt::format(
          "'{}' of hook '{}' in the checkpoint is that of {} ranks, and this run has {}: rank 0 "
          "goes on with their sum, the others begin with zeros",
          state.second, state.first, checkpoint.info.world_size, world_size));
    }
  }
  return warnings;
}

std::vector<std::string> UnusedStates(const SafetensorsFile& file, const exec::ModelMemory& memory,
                                      const OptimizerTraits& traits) {
  std::set<std::string> used;
  const auto& parameters = memory.graph().parameters;
  for (int32_t s = 0; s < traits.state_count; ++s) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (memory.program().of_parameter[i] != graph::kNone)
        used.insert(StateName(traits, s, parameters[i].name));
    }
  }
  std::vector<std::string> unused;
  for (const NamedTensor& tensor : file.tensors()) {
    if (IsState(tensor.name) && !used.contains(tensor.name)) unused.push_back(tensor.name);
  }
  return unused;
}

}  // namespace engine::checkpoint
