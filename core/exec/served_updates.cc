// There is no order among ranks: a push ends when the servers have the bytes, whatever other ranks
// do, and a pull is held at the server until it may be answered. A pull becomes ready when the push
// of its bucket has ended: if both could be started together, a scheduler that starts one transfer at
// a time could wait for a push that it has not started.
//
// Rows: two lists, of even and odd steps. Those of step t+1 are chosen while pushes of step t, which
// refer to the other list, are under way; by the time that step t+2 is prepared all of step t has
// ended. A transfer refers to the list itself, not to a copy.
#include "core/exec/served_updates.h"

#include <algorithm>

#include "core/base/hash.h"
#include "core/exec/step_runner.h"
#include "engine/ext/row_table.h"

namespace engine::exec {
namespace {

constexpr int32_t kValues = -1;  // ParameterClient::Store: the parameters, no state of them

// 0: its elements travel all together.
int64_t RowOf(const FlatLayout& layout, const BucketLayout& bucket,
              const std::vector<int64_t>& row_elements) {
  return row_elements.empty() ? 0 : row_elements[layout.parameters[bucket.spans[0].parameter]];
}

}  // namespace

// One whose rows the batch itself picks, and which nothing else uses.
std::vector<int64_t> RowElements(const graph::Graph& graph) {
  std::vector<int64_t> elements(graph.parameters.size());
  const bool picks = graph.values[graph.input].spec.dtype == DType::kInt32;
  for (const graph::Node& node : graph.nodes) {
    const auto* const op = Query<RowTable>(*node.op);
    const auto input = static_cast<size_t>(op ? op->table_input() : 0);
    if (input == 0 || input >= node.inputs.size() || !picks || node.inputs[0] != graph.input) {
      continue;
    }
    const graph::ValueId table = node.inputs[input];
    const graph::Value& value = graph.values[table];
    if (value.kind != graph::ValueKind::kParameter || value.spec.shape.ndim != 2) continue;
    int64_t uses = 0;
    for (const graph::Node& other : graph.nodes) uses += std::ranges::count(other.inputs, table);
    if (uses == 1) elements[static_cast<size_t>(value.parameter)] = value.spec.shape[1];
  }
  return elements;
}

Status CheckHasRowTables(const graph::Graph& graph) {
  const std::vector<int64_t> elements = RowElements(graph);
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] > 0 && graph.parameters[i].trainable) return {};
  }
  return Status::Error(StatusCode::kConfig,
                       "train.sparse_pull: the model trains no table of which only the rows in the "
                       "batch are read: set it to false, or, if the model ties its token table to "
                       "its head, which reads every row, set 'tied' of the model to false");
}

std::vector<BucketChain> ServedChains(const FlatLayout& layout,
                                      const std::vector<int64_t>& row_elements) {
  std::vector<BucketChain> chains;
  for (const BucketLayout& bucket : layout.buckets) {
    const bool table = RowOf(layout, bucket, row_elements) > 0;
    chains.push_back({.gradients = {{TransferKind::kPush, "push "}},
                      .parameters = {{TransferKind::kPull, table ? "pull rows of " : "pull "}},
                      .opens_step = table});
  }
  return chains;
}

Status ServedUpdates::Refuse(const std::string& what, const char* advice) const {
  return Status::Error(StatusCode::kConfig,
                       "%s, but communicator '%s' leaves updates to its servers: %s", what.c_str(),
                       options_.communicator_name.c_str(), advice);
}

// No rank sees the sum of the gradients, or all of a parameter while it is updated.
Status ServedUpdates::Check(const graph::Graph& graph, const graph::Program& program) const {
  for (size_t i = 0; i < plugins_.hooks.size(); ++i) {
    const HookStage stage = plugins_.hooks[i]->traits().stage;
    if (stage == HookStage::kLocal) continue;
    return Refuse("hook '" + options_.hook_names[i] +
                      (stage == HookStage::kWire ? "' sends gradients in another form than float32"
                                                 : "' works on the sums of gradients"),
                  "let the ranks update (its option update), or drop it");
  }
  if (optimizer_.gate != UpdateGate::kSpan) {
    return Refuse("optimizer '" + options_.optimizer_name + "' cannot update a part of a parameter",
                  "let the ranks update (its option update), or choose another optimizer");
  }
  if (options_.shard_optimizer) {
    return Refuse("train.shard_optimizer gives each rank a part of the updates", "set it to false");
  }
  if (options_.sparse_pull) ENGINE_RETURN_IF_ERROR(CheckHasRowTables(graph));
  if (options_.loss_scale < 1) {
    return Refuse("train.loss_scale is less than 1", "set it to 1 or more");
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const graph::Parameter& parameter = graph.parameters[i];
    if (graph.IsReadRounded(parameter)) {
      return Refuse("ops read '" + parameter.name + "' rounded to bfloat16",
                    "let the ranks update (its option update), or choose float32 for the ops");
    }
    if (parameter.learning_rate_scale == 1 || program.of_parameter[i] == graph::kNone) continue;
    return Refuse("'" + parameter.name + "' has a learning_rate_scale of its own",
                  "let the ranks update (its option update), or set it to 1");
  }
  return {};
}

void ServedUpdates::DescribeModel(const graph::Graph& graph, std::span<ParameterInfo> parameters,
                                  ModelInfo* model) {
  model->served = 1;
  if (!options_.sparse_pull) return;
  row_elements_ = RowElements(graph);
  for (ParameterInfo& parameter : parameters) {
    parameter.alone = row_elements_[parameter.id] > 0 ? 1 : 0;
  }
}

void ServedUpdates::DescribeTasks(const FlatLayout& layout, TaskGraphOptions* options) const {
  options->chains = ServedChains(layout, row_elements_);
  options->updates = false;
  options->alone = false;
  options->asynchronous = asynchronous();
}

Status ServedUpdates::Prepare(ModelMemory& memory) {
  memory_ = &memory;
  const FlatLayout& layout = memory.layout();
  for (const BucketLayout& bucket : layout.buckets) {
    const int64_t row = RowOf(layout, bucket, row_elements_);
    const int64_t count = row > 0 ? bucket.spans[0].count : bucket.count;
    spans_.push_back(SpansOf(bucket, count));
    buckets_.push_back({.count = count, .spans = spans_.back(), .row = row});
  }
  return {};
}

// The padding behind a tensor belongs to its span, and stays zero.
std::vector<ServedSpan> ServedUpdates::SpansOf(const BucketLayout& bucket, int64_t count) const {
  const FlatLayout& layout = memory_->layout();
  std::vector<ServedSpan> spans(bucket.spans.size());
  int64_t end = count;
  for (size_t i = spans.size(); i-- > 0;) {
    const int32_t index = layout.parameters[bucket.spans[i].parameter];
    const int64_t begin = layout.offset[index] + bucket.spans[i].offset - bucket.offset;
    spans[i] = {.count = end - begin,
                .weight_decay_scale = memory_->graph().parameters[index].DecayScale()};
    end = begin;
  }
  return spans;
}

// Keys follow from the digest of the tasks, so ranks that differ in anything that matters are refused
// by the servers.
Status ServedUpdates::Begin(const TaskGraph& tasks) {
  for (size_t u = 0; u < buckets_.size(); ++u) {
    buckets_[u].key = base::HashOf({tasks.digest, UINT64_MAX, u}) | 1;
  }
  return client_.Register(buckets_, *plugins_.optimizer, options_.timeout_ms)
      .WithContext("telling the servers what they keep");
}

// The rows that a batch reads are those whose numbers it holds. Pushes of the step before may still
// use the other list.
void ServedUpdates::BeginStep(const StepInput& input) {
  if (row_elements_.empty()) return;
  const graph::Graph& graph = memory_->graph();
  const Shape& shape = graph.values[graph.input].spec.shape;
  const int64_t count = input.samples * (shape.Count() / std::max<int64_t>(shape.dims[0], 1));
  const auto* const ids = static_cast<const int32_t*>(input.input);
  std::vector<int32_t>& rows = rows_[input.step % 2];
  rows.assign(ids, ids + count);
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
}

// Gradients are sums over the targets of this rank, times the scale of the loss.
Status ServedUpdates::BeginBackward(const StepInput& input, float weight) {
  rows_stale_ = !row_elements_.empty();
  return client_.BeginStep({.step = input.step,
                            .learning_rate = input.learning_rate,
                            .weight = weight * options_.loss_scale});
}

void ServedUpdates::Describe(const Task& task, uint64_t step, Transfer* transfer) const {
  const ServedBucket& bucket = buckets_[task.info.bucket];
  const int64_t offset = memory_->layout().buckets[task.info.bucket].offset;
  transfer->key = bucket.key;
  transfer->count = bucket.count;
  if (task.info.transfer == TransferKind::kPush) {
    transfer->send = memory_->gradients() + offset;
  } else {
    transfer->recv = memory_->parameters() + offset;
  }
  if (bucket.row == 0) return;
  // What is described is submitted next: nothing comes between.
  client_.SelectRows(bucket.key, rows_[step % 2]);
}

Status ServedUpdates::Settle(BlockingTransfers& /*transfers*/) {
  return Load(kValues, memory_->parameters(), /*tables_only=*/true);
}

Status ServedUpdates::Store(int32_t state, const float* arena) {
  const base::OpenCall open(plugins_.watch, title_, "Store");
  for (size_t u = 0; u < buckets_.size(); ++u) {
    const float* const data = arena + memory_->layout().buckets[u].offset;
    ENGINE_RETURN_IF_ERROR(client_.Store(buckets_[u].key, state, data, options_.timeout_ms)
                               .WithContext("giving the servers what they keep"));
  }
  return {};
}

Status ServedUpdates::Load(int32_t state, float* arena, bool tables_only) {
  const base::OpenCall open(plugins_.watch, title_, "Load");
  for (size_t u = 0; u < buckets_.size(); ++u) {
    if (tables_only && buckets_[u].row == 0) continue;
    float* const data = arena + memory_->layout().buckets[u].offset;
    ENGINE_RETURN_IF_ERROR(client_.Load(buckets_[u].key, state, data, options_.timeout_ms)
                               .WithContext("reading what the servers keep"));
  }
  if (state == kValues) rows_stale_ = false;
  return {};
}

Status ServedUpdates::SetState(int32_t index, std::span<const float> arena) {
  ENGINE_CHECK(static_cast<int64_t>(arena.size()) == memory_->layout().trainable_count,
               "a state of %zu elements", arena.size());
  if (collected_.empty()) {
    ENGINE_RETURN_IF_ERROR(AllocateCollected(memory_->layout().trainable_count));
  }
  return memory_->device().Copy(collected_[index].data(), arena.data(), arena.size_bytes(),
                                memory_->stream());
}

// States first: once a bucket has values, other ranks go on. If rank 0 fails before, they wait in Load
// until their deadline, and no server has made an update. A rank that takes the place of a lost
// one gets what servers have. What is not trained does not lie at servers.
Status ServedUpdates::ShareParameters(BlockingTransfers& transfers) {
  const bool stores = options_.rank.rank == 0 && options_.rank.incarnation == 0;
  for (size_t s = 0; s < collected_.size() && stores; ++s) {
    ENGINE_RETURN_IF_ERROR(Store(static_cast<int32_t>(s), collected_[s].f32()));
  }
  DropStates();
  ENGINE_RETURN_IF_ERROR(stores ? Store(kValues, memory_->parameters())
                                : Load(kValues, memory_->parameters()));
  if (options_.rank.incarnation > 0) return {};
  return Broadcast(transfers, memory_->layout().trainable_count);
}

Status ServedUpdates::CollectStates(BlockingTransfers& /*transfers*/) {
  if (options_.rank.rank != 0) return {};
  ENGINE_RETURN_IF_ERROR(AllocateCollected(memory_->layout().trainable_count));
  for (int32_t s = 0; s < optimizer_.state_count; ++s) {
    ENGINE_RETURN_IF_ERROR(Load(s, collected_[s].f32()));
  }
  return {};
}

// Each rank has flushed, so behind the barrier no push is under way and all load the same bits.
Status ServedUpdates::Meet(BlockingTransfers& transfers) {
  ENGINE_RETURN_IF_ERROR(
      transfers.Run({.kind = TransferKind::kBarrier}, options_.arrival_timeout_ms)
          .WithContext("waiting for the other ranks at the end"));
  return Load(kValues, memory_->parameters());
}

Result<int64_t> ServedUpdates::NextStep() {
  const base::OpenCall open(plugins_.watch, title_, "LastStep");
  uint64_t last = 0;
  ENGINE_RETURN_IF_ERROR(client_.LastStep(options_.timeout_ms, &last));
  return static_cast<int64_t>(last) + 1;
}

}  // namespace engine::exec
