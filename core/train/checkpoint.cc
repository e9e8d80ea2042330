#include "core/train/checkpoint.h"

#include <charconv>
#include <map>
#include <vector>

namespace engine {
namespace {

constexpr char kFormat[] = "engine.checkpoint/1";
constexpr int64_t kCopyTimeoutMs = 60000;

// Host copies of device tensors, under their names.
class Snapshot {
 public:
  Snapshot(const ModelMemory& memory, int64_t capacity) : memory_(memory) {
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
  const ModelMemory& memory_;
  std::vector<float> values_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace

Status WriteCheckpoint(const std::string& path, const Executor& executor,
                       const CheckpointInfo& info) {
  ENGINE_CHECK(executor.flushed(), "a checkpoint while updates are under way");
  const ModelMemory& memory = executor.memory();
  const OptimizerTraits traits = executor.optimizer_traits();
  const FlatLayout& layout = memory.layout();
  Snapshot snapshot(memory, layout.total_count + traits.state_count * layout.trainable_count);
  const auto& parameters = memory.graph().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    ENGINE_RETURN_IF_ERROR(
        snapshot.Add(parameters[i].name, memory.parameter(static_cast<int32_t>(i))));
  }
  for (int32_t s = 0; s < traits.state_count; ++s) {
    const std::string prefix = "optimizer/" + std::string(traits.state_names[s].view()) + "/";
    for (size_t i = 0; i < parameters.size(); ++i) {
      const TensorView state = executor.optimizer_state(static_cast<int32_t>(i), s);
      if (state.data == nullptr) continue;
      ENGINE_RETURN_IF_ERROR(snapshot.Add(prefix + parameters[i].name, state));
    }
  }
  ENGINE_RETURN_IF_ERROR(snapshot.Finish());
  return WriteSafetensors(
      path, snapshot.tensors(),
      {{"format", kFormat},
       {"step", std::to_string(info.step)},
       {"config", info.config},
       {"optimizer", info.optimizer},
       {"optimizer_state_version", std::to_string(traits.state_format_version)}});
}

Result<OpenedCheckpoint> OpenCheckpoint(const std::string& path) {
  OpenedCheckpoint opened;
  ENGINE_ASSIGN_OR_RETURN(opened.file, SafetensorsFile::Open(path));
  const std::map<std::string, std::string>& metadata = opened.file->metadata();
  const auto get = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  const std::string step = get("step");
  const auto parsed = std::from_chars(step.data(), step.data() + step.size(), opened.info.step);
  const bool counts = parsed.ec == std::errc() && parsed.ptr == step.data() + step.size();
  if (get("format") != kFormat || !counts || get("config").empty()) {
    return Status::Error(StatusCode::kBadData,
                         "%s: not a checkpoint of this engine (its metadata lacks '%s')",
                         path.c_str(), kFormat);
  }
  opened.info.config = get("config");
  opened.info.optimizer = get("optimizer");
  return opened;
}

Status LoadParameters(const SafetensorsFile& file, ModelMemory& memory) {
  const auto& parameters = memory.graph().parameters;
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
  return memory.stream()->Synchronize(kCopyTimeoutMs);
}

}  // namespace engine
