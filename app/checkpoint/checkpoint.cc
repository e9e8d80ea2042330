#include "app/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <new>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "app/checkpoint/rank_states.h"

namespace engine::checkpoint {
namespace {

constexpr char kFormat[] = "engine.checkpoint/2";
constexpr char kFirstFormat[] = "engine.checkpoint/1";  // with another digest
constexpr size_t kCachedBytes = size_t{256} << 10;      // stays in the cache from check to digest
constexpr size_t kAtOnceBytes = size_t{8} << 20;
constexpr int64_t kCopyTimeoutMs = 60000;
constexpr char kStatePrefix[] = "optimizer/";
constexpr std::string_view kClassNamesPrefix = "class_names/";

// Other processes, and steps that go on, need memory too, so a copy that is not necessary takes no
// more than half of what is free. False: there is no memory.
bool Reserve(size_t size_bytes, bool necessary, CopyMemory& memory) {
  if (memory.size_bytes >= size_bytes) return true;
  if (!necessary && std::cmp_greater(size_bytes, FreeMemory() / 2)) return false;
  memory.bytes.reset(new (std::nothrow) std::byte[size_bytes]);
  memory.size_bytes = memory.bytes == nullptr ? 0 : size_bytes;
  return memory.bytes != nullptr;
}

Status CopyToHost(const exec::ModelMemory& memory, CheckpointContent& content) {
  size_t size_bytes = 0;
  for (const Part& part : content.parts) size_bytes += part.size_bytes + AtomicFile::kPageBytes;
  const bool on_accelerator = memory.accelerator() != nullptr;
  content.copied = Reserve(size_bytes, on_accelerator, *content.memory);
  if (!content.copied && on_accelerator) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "no memory for the %zu bytes of a checkpoint", size_bytes);
  }
  if (!content.copied) return {};
  std::byte* to = content.memory->bytes.get();
  for (Part& part : content.parts) {
    to += (part.begin - reinterpret_cast<uintptr_t>(to)) % AtomicFile::kPageBytes;
    ENGINE_RETURN_IF_ERROR(memory.device().Copy(to, part.data, part.size_bytes, memory.stream()));
    part.data = std::exchange(to, to + part.size_bytes);
  }
  return memory.stream()->Synchronize(kCopyTimeoutMs);
}

// A run that has diverged must not replace what it had before. Without a way out of the loop, so that it
// takes several values at once.
bool AllFinite(const void* data, size_t size_bytes) {
  constexpr uint32_t kExponent = 0x7f800000;
  const auto* const bits = static_cast<const uint32_t*>(data);
  uint32_t odd = 0;
  for (size_t i = 0; i < size_bytes / sizeof(float); ++i) {
    odd |= static_cast<uint32_t>((bits[i] & kExponent) == kExponent);
  }
  return odd == 0;
}

Status AddPart(const CheckpointContent& content, const Part& part, DataDigest& digest) {
  const TensorEntry& tensor = content.header.tensors[part.tensor];
  for (size_t at = 0; at < part.size_bytes; at += kCachedBytes) {
    const std::byte* const data = static_cast<const std::byte*>(part.data) + at;
    const size_t size = std::min(kCachedBytes, part.size_bytes - at);
    if (tensor.dtype == DType::kFloat32 && !AllFinite(data, size)) {
      return Status::Error(StatusCode::kConfig,
                           "training diverged: '%s' is not finite after step %lld, so no "
                           "checkpoint of it is written; lower train.learning_rate.base, or add "
                           "the hook clip_norm",
                           tensor.name.c_str(), static_cast<long long>(content.step));
    }
    digest.Add(part.begin + at, data, size);
  }
  return {};
}

// Calls `visit` for what `rank` of `world_size` keeps of the elements [offset, offset + count) where
// states are sharded: the bucket that they are of, begin and end.
template <typename Visit>
void VisitShards(const exec::FlatLayout& layout, int32_t rank, int32_t world_size, int64_t offset,
                 int64_t count, Visit visit) {
  for (size_t u = 0; u < layout.buckets.size(); ++u) {
    const exec::BucketLayout& bucket = layout.buckets[u];
    const int64_t size = bucket.count / world_size;
    const int64_t first = bucket.offset + rank * size;
    const int64_t begin = std::max(offset, first);
    const int64_t end = std::min(offset + count, first + size);
    if (begin < end) visit(static_cast<int32_t>(u), begin, end);
  }
}

// The share of `writer` in what all have: `before` bytes, then this tensor, of `all`.
Part ShareOf(const Writer& writer, uint64_t before, uint64_t all, size_t index,
             const TensorView& view) {
  const uint64_t size = view.size_bytes();
  const auto cut = [&](int32_t rank) {
    const uint64_t at = std::max(all * static_cast<uint64_t>(rank) / writer.count, before) - before;
    return std::min(size, train::CeilDiv(at, DataDigest::kBlockBytes) * DataDigest::kBlockBytes);
  };
  const uint64_t begin = cut(writer.rank);
  return {index, before + begin, static_cast<const std::byte*>(view.data) + begin,
          cut(writer.rank + 1) - begin};
}

std::string StateName(const OptimizerTraits& traits, int32_t state, const std::string& parameter) {
  return kStatePrefix + std::string(traits.state_names[state].view()) + "/" + parameter;
}

std::vector<std::string> LinesOf(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    lines.emplace_back(text.substr(0, end));
  }
  return lines;
}

// The numbers of the metadata, by their keys.
template <typename Info, typename Visit>
void VisitNumbers(Info& info, Visit visit) {
  visit("step", info.step);
  visit("optimizer_state_version", info.optimizer_state_version);
  visit("seed", info.seed);
  visit("world_size", info.world_size);
  visit("global_batch", info.global_batch);
  visit("epoch", info.position.epoch);
  visit("epoch_samples", info.position.samples);
}

std::map<std::string, std::string> MetadataOf(const CheckpointInfo& info,
                                              const OptimizerTraits& traits,
                                              const RankStates& kept) {
  std::map<std::string, std::string> metadata = {{"format", kFormat},
                                                 {"config", info.config},
                                                 {"optimizer", info.optimizer},
                                                 {"data", info.data}};
  VisitNumbers(info, [&](const char* key, auto value) { metadata[key] = std::to_string(value); });
  metadata["optimizer_state_version"] = std::to_string(traits.state_format_version);
  if (!info.best.empty()) metadata["best"] = info.best;
  for (const auto& [target, names] : info.class_names) {
    metadata[std::string(kClassNamesPrefix) + target] = fmt::format("{}\n", fmt::join(names, "\n"));
  }
  metadata.insert(kept.versions.begin(), kept.versions.end());
  return metadata;
}

// Parameters, then the states of what is trained: each has the shape of its parameter, and `shards` are not
// seen, so that there it stands for them.
std::vector<NamedTensor> TensorsOf(const exec::Executor& executor, bool shards) {
  const exec::ModelMemory& memory = executor.memory();
  const auto& parameters = memory.graph().parameters;
  const OptimizerTraits& traits = executor.updates().optimizer();
  std::vector<NamedTensor> tensors;
  for (int32_t s = -1; s < traits.state_count; ++s) {
    for (int32_t i = 0; i < static_cast<int32_t>(parameters.size()); ++i) {
      TensorView view = shards ? exec::ViewIn(memory, memory.parameters(), i) : TensorView();
      if (s >= 0 && !shards) view = executor.updates().state(i, s);
      if (s < 0) view = parameters[i].constant() ? TensorView() : memory.parameter(i);
      if (view.data == nullptr) continue;
      const std::string& name = parameters[i].name;
      tensors.push_back({s < 0 ? name : StateName(traits, s, name), view});
    }
  }
  return tensors;
}

// Of `tensors`, as TensorsOf has them for this writer.
void AddParts(const exec::Executor& executor, const Writer& writer,
              std::span<const NamedTensor> tensors, CheckpointContent& content) {
  const exec::ModelMemory& memory = executor.memory();
  const exec::UpdateStrategy& updates = executor.updates();
  const bool shards = writer.count > 1 && updates.in_parts();
  const auto whole = static_cast<size_t>(std::ranges::count_if(
      tensors, [&](const NamedTensor& tensor) { return !shards || IsParameter(tensor.name); }));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t at = content.header.tensors[i].begin;
    if (i < whole) {
      const uint64_t all = content.header.tensors[whole - 1].end;
      const Part part = ShareOf(writer, at, all, i, tensors[i].view);
      if (part.size_bytes > 0) content.parts.push_back(part);
      continue;
    }
    const size_t of_each = (tensors.size() - whole) / updates.optimizer().state_count;
    const auto state = static_cast<int32_t>((i - whole) / of_each);
    const int64_t offset = tensors[i].view.f32() - memory.parameters();
    VisitShards(
        memory.layout(), writer.rank, writer.count, offset, tensors[i].view.count(),
        [&](int32_t bucket, int64_t begin, int64_t end) {
          content.parts.push_back({i, at + static_cast<uint64_t>(begin - offset) * sizeof(float),
                                   updates.states().At(state, bucket, begin),
                                   static_cast<size_t>(end - begin) * sizeof(float)});
        });
  }
}

// The stored state of one parameter, checked; host memory of the file.
Result<TensorView> FindState(const OpenedCheckpoint& checkpoint, const OptimizerTraits& traits,
                             int32_t state, const graph::Parameter& parameter) {
  const char* const optimizer = checkpoint.info.optimizer.c_str();
  if (checkpoint.info.optimizer_state_version != traits.state_format_version) {
    return Status::Error(StatusCode::kBadData,
                         "the states of optimizer '%s' in the checkpoint have format %u, and its "
                         "plugin reads format %u: use the version of the plugin that wrote them",
                         optimizer, checkpoint.info.optimizer_state_version,
                         traits.state_format_version);
  }
  const std::string name = StateName(traits, state, parameter.name);
  if (checkpoint.file->Find(name).ok()) return FindLike(*checkpoint.file, name, parameter.shape);
  return Status::Error(StatusCode::kBadData,
                       "the checkpoint has no '%s' of optimizer '%s' for parameter '%s': its run "
                       "did not train it, or had other options of the optimizer",
                       std::string(traits.state_names[state].view()).c_str(), optimizer,
                       parameter.name.c_str());
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

bool IsCheckpoint(const SafetensorsFile& file) {
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end()) return false;
  return format->second == kFormat || format->second == kFirstFormat;
}

bool IsParameter(std::string_view tensor) {
  return !tensor.starts_with(kStatePrefix) && !IsRankState(tensor);
}

Result<TensorView> FindLike(const SafetensorsFile& file, const std::string& name,
                            const Shape& shape) {
  ENGINE_ASSIGN_OR_RETURN(const TensorView stored, file.Find(name));
  if (stored.shape == shape && stored.dtype == DType::kFloat32) return stored;
  return Status::Error(StatusCode::kBadData,
                       "'%s' has another shape in the checkpoint than in this model", name.c_str());
}

// Nothing writes to what is read here before this returns, or what is not copied is written: updates
// are done, and no step begins. What `kept` has comes last: other writers do not know it.
Result<CheckpointContent> ContentOf(const exec::Executor& executor, const CheckpointInfo& info,
                                    const RankStates& kept, bool copies,
                                    std::shared_ptr<CopyMemory> to, Writer writer) {
  ENGINE_CHECK(executor.flushed(), "a checkpoint while updates are under way");
  const exec::ModelMemory& memory = executor.memory();
  const OptimizerTraits& traits = executor.updates().optimizer();
  const bool shards = writer.count > 1 && executor.updates().in_parts();
  CheckpointContent content{.step = info.step, .spill = kept.spill, .memory = std::move(to)};
  std::vector<NamedTensor> tensors = TensorsOf(executor, shards);
  const size_t own = tensors.size();
  tensors.insert(tensors.end(), kept.tensors.begin(), kept.tensors.end());
  ENGINE_ASSIGN_OR_RETURN(content.header, LayOut(tensors, MetadataOf(info, traits, kept)));
  const std::span<const NamedTensor> all(tensors);
  AddParts(executor, writer, all.first(own), content);
  if (copies || memory.accelerator() != nullptr) {
    ENGINE_RETURN_IF_ERROR(CopyToHost(memory, content));
  }
  for (size_t i = own; i < all.size(); ++i) {
    const TensorView& view = all[i].view;
    content.parts.push_back({i, content.header.tensors[i].begin, view.data, view.size_bytes()});
  }
  return content;
}

// What follows itself in memory as in the file is written at once.
Result<DataDigest> WriteParts(const CheckpointContent& content, uint64_t data_begin,
                              AtomicFile& file) {
  DataDigest digest;
  for (auto part = content.parts.begin(); part != content.parts.end();) {
    const uint64_t begin = part->begin;
    const auto* const data = static_cast<const std::byte*>(part->data);
    size_t size = 0;
    do {
      ENGINE_RETURN_IF_ERROR(AddPart(content, *part, digest));
      size += part->size_bytes;
    } while (++part != content.parts.end() && part->begin == begin + size &&
             part->data == data + size && size < kAtOnceBytes);
    ENGINE_RETURN_IF_ERROR(file.WriteAt(data_begin + begin, data, size));
  }
  return digest;
}

Status FinishFile(const CheckpointContent& content, const DataDigest& digest, AtomicFile& file) {
  ENGINE_ASSIGN_OR_RETURN(const std::string head, HeadOf(content.header, digest));
  ENGINE_RETURN_IF_ERROR(file.WriteAt(0, head.data(), head.size()));
  return file.Commit();
}

Status WriteCheckpoint(const std::string& path, const CheckpointContent& content,
                       std::function<void()> progress) {
  ENGINE_ASSIGN_OR_RETURN(const std::string head, HeadOf(content.header, {}));
  ENGINE_ASSIGN_OR_RETURN(const auto file, AtomicFile::Create(path, std::move(progress)));
  ENGINE_ASSIGN_OR_RETURN(const DataDigest digest, WriteParts(content, head.size(), *file));
  return FinishFile(content, digest, *file);
}

// Nothing but the step is required, and nothing may be negative.
Result<OpenedCheckpoint> OpenCheckpoint(const std::string& path) {
  OpenedCheckpoint opened;
  ENGINE_ASSIGN_OR_RETURN(opened.file, SafetensorsFile::Open(path));
  CheckpointInfo& info = opened.info;
  const auto text_of = [&](const char* key) {
    const auto found = opened.file->metadata().find(key);
    return found == opened.file->metadata().end() ? std::string() : found->second;
  };
  info.config = text_of("config");
  info.optimizer = text_of("optimizer");
  info.data = text_of("data");
  info.best = text_of("best");
  opened.digest = text_of("digest");
  for (const auto& [key, text] : opened.file->metadata()) {
    if (!key.starts_with(kClassNamesPrefix)) continue;
    info.class_names[key.substr(kClassNamesPrefix.size())] = LinesOf(text);
  }
  bool good = IsCheckpoint(*opened.file) && !info.config.empty() && !text_of("step").empty();
  VisitNumbers(info, [&](const char* key, auto& number) {
    const std::string text = text_of(key);
    if (text.empty()) return;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    good = good && error == std::errc() && end == text.data() + text.size() && number >= 0;
  });
  if (good) return opened;
  return Status::Error(StatusCode::kBadData,
                       "%s: not a checkpoint of this engine (its metadata is not that of '%s')",
                       path.c_str(), kFormat);
}

Status LoadParameters(const SafetensorsFile& file, exec::ModelMemory& memory) {
  const auto& parameters = memory.graph().parameters;
  std::set<std::string> names;
  for (const graph::Parameter& parameter : parameters) {
    if (!parameter.constant()) names.insert(parameter.name);
  }
  for (const NamedTensor& tensor : file.tensors()) {
    if (!IsParameter(tensor.name) || names.contains(tensor.name)) continue;
    return Status::Error(StatusCode::kBadData,
                         "the checkpoint is of another model: this one has no parameter '%s'",
                         tensor.name.c_str());
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorView view = memory.parameter(static_cast<int32_t>(i));
    const void* source = parameters[i].values.data();
    if (!parameters[i].constant()) {
      ENGINE_ASSIGN_OR_RETURN(const TensorView stored,
                              FindLike(file, parameters[i].name, view.shape));
      source = stored.data;
    }
    ENGINE_RETURN_IF_ERROR(
        memory.device().Copy(view.data, source, view.size_bytes(), memory.stream()));
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
    const auto load = [&](int64_t offset, int64_t count, const float* values) -> Status {
      if (!states.sharded()) return copy(states.At(s, graph::kNone, offset), values, count);
      Status copied;
      VisitShards(memory.layout(), rank.rank, rank.world_size, offset, count,
                  [&](int32_t bucket, int64_t begin, int64_t end) {
                    const float* const from = values + (begin - offset);
                    if (copied.ok()) copied = copy(states.At(s, bucket, begin), from, end - begin);
                  });
      return copied;
    };
    ENGINE_RETURN_IF_ERROR(ForEachState(checkpoint, memory, traits, s, load));
  }
  // The file may be closed after this.
  return memory.stream()->Synchronize(kCopyTimeoutMs);
}

Status LoadCheckpoint(const OpenedCheckpoint& checkpoint, exec::Executor& executor,
                      const RankInfo& rank) {
  const OptimizerTraits traits = executor.updates().optimizer();
  exec::ModelMemory& memory = executor.memory();
  ENGINE_RETURN_IF_ERROR(LoadParameters(*checkpoint.file, memory));
  ENGINE_RETURN_IF_ERROR(LoadRankStates(checkpoint, executor, rank));
  if (!executor.updates().served()) {
    return LoadStates(checkpoint, memory, traits, rank, executor.updates().states());
  }
  for (int32_t s = 0; rank.rank == 0 && s < traits.state_count; ++s) {
    ENGINE_ASSIGN_OR_RETURN(const std::vector<float> state,
                            ReadStates(checkpoint, memory, traits, s));
    ENGINE_RETURN_IF_ERROR(executor.updates().served()->SetState(s, state));
    ENGINE_RETURN_IF_ERROR(memory.stream()->Synchronize(kCopyTimeoutMs));
  }
  return {};
}

std::vector<std::string> StateWarnings(const OpenedCheckpoint& checkpoint,
                                       const exec::Executor& executor, int32_t world_size) {
  std::vector<std::string> warnings = RankStateWarnings(checkpoint, executor, world_size);
  std::set<std::string> used;
  const exec::UpdateStrategy& updates = executor.updates();
  const auto& parameters = executor.memory().graph().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (executor.memory().program().of_parameter[i] == graph::kNone) continue;
    for (int32_t s = 0; s < updates.optimizer().state_count; ++s) {
      used.insert(StateName(updates.optimizer(), s, parameters[i].name));
    }
  }
  for (const NamedTensor& tensor : checkpoint.file->tensors()) {
    if (!tensor.name.starts_with(kStatePrefix) || used.contains(tensor.name)) continue;
    warnings.push_back("this run has no use for '" + tensor.name + "' of the checkpoint");
  }
  return warnings;
}

}  // namespace engine::checkpoint
