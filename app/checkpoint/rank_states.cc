// Through a buffer of the device, piece by piece and one rank after the other, so that only rank 0
// needs room for all of it:
//
//   state = size bytes      size = int64, left out where all ranks know it
//   piece = at most kPieceBytes of either, padded to whole numbers of float32
#include "app/checkpoint/rank_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <utility>

#include "core/base/call_watch.h"
#include "core/exec/step_runner.h"
#include "core/exec/wire.h"
#include "core/graph/device_buffer.h"
#include "core/train/batch_source.h"
#include "engine/ext/saved_state.h"

namespace engine::checkpoint {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;
constexpr char kTensorsPrefix[] = "hook/";
constexpr char kSavedPrefix[] = "saved/";

// One state of a plugin on this rank: numbers for all that is trained, in memory of the device, or
// what the plugin saves.
struct State {
  std::string name;  // of its tensors, before "/" RANK
  std::string plugin = {};
  float* numbers = nullptr;
  SavedState* saved = nullptr;
};

// In an order that is the same on all ranks.
std::vector<State> StatesOf(const exec::Executor& executor) {
  std::vector<State> states;
  const exec::ExecutorOptions& options = executor.options();
  const plugin::PluginSet& plugins = executor.plugins();
  const exec::Wire* const wire = executor.wire();
  for (int32_t s = 0; wire != nullptr && s < wire->state_count(); ++s) {
    const exec::WireLayout& layout = wire->layout();
    const std::string_view name = layout.traits.state_names[s].view();
    states.push_back({.name = fmt::format("{}{}/{}", kTensorsPrefix, layout.name, name),
                      .numbers = wire->state(s)});
  }
  const auto add = [&](const char* kind, const std::string& name, Object& object) {
    SavedState* const saved = Query<SavedState>(object);
    if (saved == nullptr) return;
    states.push_back({.name = fmt::format("{}{}/{}", kSavedPrefix, kind, name),
                      .plugin = fmt::format("{} '{}'", kind, name),
                      .saved = saved});
  };
  add("communicator", options.communicator_name, *plugins.communicator);
  add("scheduler", options.scheduler_name, *plugins.scheduler);
  for (size_t i = 0; i < plugins.hooks.size(); ++i) {
    add("hook", options.hook_names[i], *plugins.hooks[i]);
  }
  return states;
}

// Calls `visit` for each tensor of them: "hook/topk/mean_residual/fc.weight".
template <typename Visit>
void VisitTensors(const exec::Executor& executor, Visit visit) {
  const auto& parameters = executor.memory().graph().parameters;
  for (const State& state : StatesOf(executor)) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<int32_t>(i);
      const TensorView view = exec::ViewIn(executor.memory(), state.numbers, index);
      if (view.data != nullptr) visit(state.name + "/" + parameters[i].name, view);
    }
  }
}

// State::name of all that the file has: it has three parts, and so has what is behind "hook/".
std::set<std::string> StatesIn(const SafetensorsFile& file) {
  std::set<std::string> states;
  for (const NamedTensor& tensor : file.tensors()) {
    if (!IsRankState(tensor.name)) continue;
    const size_t second = tensor.name.find('/', tensor.name.find('/') + 1);
    states.insert(tensor.name.substr(0, tensor.name.find('/', second + 1)));
  }
  return states;
}

// What SaveState gives its sink in the first call.
struct Sink {
  std::vector<uint8_t> bytes;
  uint64_t size = 0;
  int64_t calls = 0;
};

void Take(void* context, const uint8_t* data, uint64_t size) noexcept {
  auto& sink = *static_cast<Sink*>(context);
  if (++sink.calls > 1) return;
  sink.size = size;
  try {
    if (data != nullptr && std::in_range<ptrdiff_t>(size)) sink.bytes.assign(data, data + size);
  } catch (const std::exception&) {  // no memory
    sink.bytes.clear();
  }
}

Result<std::vector<uint8_t>> Save(const State& state, base::CallWatch* watch) {
  const char* const plugin = state.plugin.c_str();
  const base::OpenCall open(watch, state.plugin, "SaveState");
  Sink sink;
  ENGINE_RETURN_IF_ERROR(state.saved->SaveState(Take, &sink).WithContext("%s", plugin));
  if (sink.calls == 1 && sink.bytes.size() == sink.size) return std::move(sink.bytes);
  return Status::Error(StatusCode::kPlugin,
                       "%s: SaveState called its sink %lld times with %llu bytes, and must do so "
                       "once, with bytes that are there and for which there is memory",
                       plugin, static_cast<long long>(sink.calls),
                       static_cast<unsigned long long>(sink.size));
}

class Collection {
 public:
  Collection(const exec::Executor& executor, const std::string& path)
      : executor_(executor),
        memory_(executor.memory()),
        rank_(executor.options().rank),
        moves_(rank_.world_size > 1 && !executor.updates().asynchronous() &&
               executor.plugins().communicator->traits().no_op == 0),
        collected_{.spill = std::make_shared<SpillFile>(path)} {}

  Result<RankStates> Run() {
    const std::vector<State> states = StatesOf(executor_);
    if (states.empty()) return std::move(collected_);
    ENGINE_ASSIGN_OR_RETURN(
        piece_, graph::DeviceBuffer::Create(memory_.device(), kPieceBytes, memory_.stream(),
                                            "what plugins keep in checkpoints"));
    for (const State& state : states) ENGINE_RETURN_IF_ERROR(Collect(state));
    return std::move(collected_);
  }

 private:
  // Where nothing moves, nothing is known of what others save.
  Status Collect(const State& state) {
    const void* own = state.numbers;
    int64_t own_bytes = memory_.layout().trainable_count * static_cast<int64_t>(sizeof(float));
    std::vector<uint8_t> saved;
    if (state.saved != nullptr) {
      ENGINE_ASSIGN_OR_RETURN(saved, Save(state, executor_.plugins().watch));
      own = saved.data();
      own_bytes = static_cast<int64_t>(saved.size());
      collected_.versions[state.name] = std::to_string(state.saved->state_version());
    }
    const int32_t roots = state.saved != nullptr && !moves_ ? 1 : rank_.world_size;
    for (int32_t root = 0; root < roots; ++root) {
      int64_t bytes = own_bytes;
      if (state.saved) ENGINE_RETURN_IF_ERROR(Move(root, &bytes, &bytes, sizeof(bytes)));
      float* kept = nullptr;
      if (rank_.rank == 0) {
        ENGINE_ASSIGN_OR_RETURN(kept,
                                collected_.spill->Allocate(train::CeilDiv(bytes, sizeof(float))));
      }
      ENGINE_RETURN_IF_ERROR(Move(root, own, kept, bytes));
      if (rank_.rank == 0) Keep(state, root, kept, bytes);
    }
    return {};
  }

  // `from` of `root` to `to`, on ranks where that is not null.
  Status Move(int32_t root, const void* from, void* to, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kPieceBytes) {
      const int64_t part = std::min(kPieceBytes, bytes - at);
      const auto copy = [&](void* target, const void* source) {
        return memory_.device().Copy(target, source, static_cast<size_t>(part), memory_.stream());
      };
      if (rank_.rank == root) {
        ENGINE_RETURN_IF_ERROR(copy(piece_.data(), static_cast<const std::byte*>(from) + at));
      }
      if (moves_) {
        ENGINE_RETURN_IF_ERROR(executor_.transfers()
                                   .Run({.kind = TransferKind::kBroadcast,
                                         .root = root,
                                         .send = piece_.data(),
                                         .recv = piece_.data(),
                                         .count = train::CeilDiv(part, sizeof(float)),
                                         .stream = memory_.stream()})
                                   .WithContext("collecting what plugins keep on rank %d", root));
      }
      if (to != nullptr) {
        ENGINE_RETURN_IF_ERROR(copy(static_cast<std::byte*>(to) + at, piece_.data()));
      }
      ENGINE_RETURN_IF_ERROR(memory_.stream()->Synchronize(executor_.options().device_timeout_ms));
    }
    return {};
  }

  void Keep(const State& state, int32_t root, float* kept, int64_t bytes) {
    const std::string name = fmt::format("{}/{}", state.name, root);
    if (state.saved != nullptr) {
      collected_.tensors.push_back({name, {kept, {bytes}, DType::kUint8}});
      return;
    }
    const auto& parameters = memory_.graph().parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const TensorView view = exec::ViewIn(memory_, kept, static_cast<int32_t>(i));
      if (view.data != nullptr)
        collected_.tensors.push_back({name + "/" + parameters[i].name, view});
    }
  }

  const exec::Executor& executor_;
  const exec::ModelMemory& memory_;
  const RankInfo rank_;
  const bool moves_;
  graph::DeviceBuffer piece_;
  RankStates collected_;
};

// Sums up over ranks where their number is another one.
Status LoadNumbers(const OpenedCheckpoint& checkpoint, const exec::Executor& executor,
                   const State& state, const RankInfo& rank) {
  const exec::ModelMemory& memory = executor.memory();
  const bool same_ranks = checkpoint.info.world_size == rank.world_size;
  if (!same_ranks && rank.rank != 0) return {};
  const int32_t first = same_ranks ? rank.rank : 0;
  const int32_t last = same_ranks ? rank.rank : checkpoint.info.world_size - 1;
  for (size_t i = 0; i < memory.graph().parameters.size(); ++i) {
    if (memory.program().of_parameter[i] == graph::kNone) continue;
    const graph::Parameter& parameter = memory.graph().parameters[i];
    std::vector<float> sum(static_cast<size_t>(parameter.shape.Count()));
    for (int32_t r = first; r <= last; ++r) {
      const std::string name = fmt::format("{}/{}/{}", state.name, r, parameter.name);
      ENGINE_ASSIGN_OR_RETURN(const TensorView part,
                              FindLike(*checkpoint.file, name, parameter.shape));
      const float* const values = part.f32();
      // What is not a sum keeps its bits.
      for (size_t k = 0; k < sum.size(); ++k) sum[k] = r == first ? values[k] : sum[k] + values[k];
    }
    float* const to = state.numbers + memory.layout().offset[i];
    ENGINE_RETURN_IF_ERROR(
        memory.device().Copy(to, sum.data(), sum.size() * sizeof(float), memory.stream()));
    ENGINE_RETURN_IF_ERROR(memory.stream()->Synchronize(executor.options().device_timeout_ms));
  }
  return {};
}

Status LoadSaved(const OpenedCheckpoint& checkpoint, const State& state, const RankInfo& rank,
                 base::CallWatch* watch) {
  const auto& metadata = checkpoint.file->metadata();
  const auto found = metadata.find(state.name);
  const std::string stored = found == metadata.end() ? "" : found->second;
  const uint32_t version = state.saved->state_version();
  if (stored != std::to_string(version)) {
    return Status::Error(StatusCode::kBadData,
                         "the state of %s in the checkpoint has version '%.20s', and the plugin "
                         "reads version '%u': use the version of the plugin that wrote it",
                         state.plugin.c_str(), stored.c_str(), version);
  }
  std::string name = fmt::format("{}/{}", state.name, rank.rank);
  const bool same_ranks = checkpoint.info.world_size == rank.world_size;
  if (!same_ranks || !checkpoint.file->Find(name).ok()) name = state.name + "/0";
  ENGINE_ASSIGN_OR_RETURN(const TensorView view, checkpoint.file->Find(name));
  const base::OpenCall open(watch, state.plugin, "LoadState");
  const auto* const bytes = static_cast<const uint8_t*>(view.data);
  return state.saved->LoadState({bytes, view.size_bytes()})
      .WithContext("%s cannot go on with '%s' of the checkpoint", state.plugin.c_str(),
                   name.c_str());
}

}  // namespace

std::string DescribeRankStates(const exec::Executor& executor) {
  std::string text;
  for (const State& state : StatesOf(executor)) {
    text += state.name;
    if (state.saved) text += " version " + std::to_string(state.saved->state_version());
    text += "\n";
  }
  return text;
}

Result<RankStates> CollectRankStates(const exec::Executor& executor, const std::string& path) {
  ENGINE_CHECK(executor.flushed(), "states while updates are under way");
  return Collection(executor, path).Run();
}

Status RankMemory::Copy(const exec::Executor& executor, const char* prefix, Copies* to) {
  for (const State& state : StatesOf(executor)) {
    if (state.saved == nullptr || !state.name.starts_with(prefix)) continue;
    ENGINE_ASSIGN_OR_RETURN((*to)[state.name], Save(state, executor.plugins().watch));
  }
  VisitTensors(executor, [&](const std::string& name, const TensorView& view) {
    const auto* const data = static_cast<const uint8_t*>(view.data);
    (*to)[name].assign(data, data + view.size_bytes());
  });
  return {};
}

Status RankMemory::Keep(const exec::Executor& executor, uint64_t step) {
  next_step_ = step;
  return Copy(executor, "saved/hook/", &earlier_);
}

// Where another rank has come further than this one, that was given all that this one had for that step:
// what is kept here now is of it.
Status RankMemory::ReturnTo(const exec::Executor& executor, int64_t step) {
  ENGINE_RETURN_IF_ERROR(Copy(executor, kSavedPrefix, &chosen_));
  if (std::cmp_greater_equal(step, next_step_)) return {};
  for (const auto& [name, bytes] : earlier_) chosen_[name] = bytes;
  return {};
}

void RankMemory::GiveTensors(const exec::Executor& executor) {
  VisitTensors(executor, [&](const std::string& name, const TensorView& view) {
    std::ranges::copy(chosen_[name], static_cast<uint8_t*>(view.data));
  });
}

RankStates RankMemory::Saved(const exec::Executor& executor) {
  RankStates own;
  for (const State& state : StatesOf(executor)) {
    if (state.saved == nullptr) continue;
    std::vector<uint8_t>& bytes = chosen_[state.name];
    own.tensors.push_back({state.name + "/0", {bytes.data(), {std::ssize(bytes)}, DType::kUint8}});
    own.versions[state.name] = std::to_string(state.saved->state_version());
  }
  return own;
}

Status LoadRankStates(const OpenedCheckpoint& checkpoint, const exec::Executor& executor,
                      const RankInfo& rank) {
  const std::set<std::string> stored = StatesIn(*checkpoint.file);
  for (const State& state : StatesOf(executor)) {
    if (!stored.contains(state.name)) continue;
    ENGINE_RETURN_IF_ERROR(state.saved != nullptr
                               ? LoadSaved(checkpoint, state, rank, executor.plugins().watch)
                               : LoadNumbers(checkpoint, executor, state, rank));
  }
  return {};
}

std::vector<std::string> RankStateWarnings(const OpenedCheckpoint& checkpoint,
                                           const exec::Executor& executor, int32_t world_size) {
  std::vector<std::string> warnings;
  std::set<std::string> stored = StatesIn(*checkpoint.file);
  for (const State& state : StatesOf(executor)) {
    const bool saved = state.saved != nullptr;
    if (stored.erase(state.name) == 0) {
      warnings.push_back(fmt::format("the checkpoint has no '{}': it begins {}", state.name,
                                     saved ? "anew" : "with zeros"));
    } else if (checkpoint.info.world_size != world_size) {
      warnings.push_back(
          fmt::format("'{}' of the checkpoint is that of {} ranks, and this run has {}: {}",
                      state.name, checkpoint.info.world_size, world_size,
                      saved ? "all ranks go on with that of rank 0"
                            : "rank 0 goes on with their sum, the others begin with zeros"));
    }
  }
  for (const std::string& state : stored) {
    warnings.push_back("this run has no use for '" + state + "' of the checkpoint");
  }
  return warnings;
}

bool IsRankState(std::string_view tensor) {
  return tensor.starts_with(kTensorsPrefix) || tensor.starts_with(kSavedPrefix);
}

}  // namespace engine::checkpoint
