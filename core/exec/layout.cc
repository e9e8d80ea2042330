// A scheduler's plan becomes offsets: buckets one behind the other in the order of the plan, in a bucket
// its spans, each from a cache line on. Where each rank gets a part of the bucket, its end is padded to
// a multiple of that for all ranks. A bucket that ends inside of a parameter ends without padding, so
// that the parameter stays contiguous: such cuts are only where ranks can share them, and then it is
// the begin of that span which is padded.
//
//   | bucket 0 | bucket 1 | ... | not trained | buffers |
//   '---- trainable_count ---'            '- buffer_begin
#include "core/exec/layout.h"

#include <algorithm>

#include "core/plugin/plugin_set.h"

namespace engine::exec {
namespace {

// For %lld.
long long Long(int64_t number) {
  return number;
}

// Takes a plan down, and checks it. A scheduler addresses parameters by their position.
class LayoutSink final : public PlanSinkBase {
 public:
  // Both are borrowed. FlatLayout::parameters is there already.
  LayoutSink(const ModelInfo& model, FlatLayout* layout)
      : model_(model), layout_(*layout), covered_(model.parameters.size(), 0) {
    layout_.buckets_of.resize(covered_.size());
  }

  void AddBucket(Array<const BucketSpan> spans, int32_t priority,
                 BucketStages stages) noexcept override {
    if (model_.sharded != 0) stages = BucketStages::kReduceScatterAllGather;
    if (model_.served != 0) stages = BucketStages::kAllReduce;
    // Each rank gets the same number of elements of a bucket that is scattered.
    const int64_t multiple =
        stages == BucketStages::kAllReduce ? kAlignElements : model_.slice_multiple;
    int64_t& end = layout_.trainable_count;
    const int64_t offset = end;
    if (spans.empty()) Reject("an empty bucket");
    if (!plugin::IsKnown(stages, BucketStages::kReduceScatterAllGather)) Reject("unknown stages");
    for (const BucketSpan& span : spans) {
      if (!problem_.ok() || !Accept(span, spans.size() == 1)) return;
      if (span.offset == 0) {
        const bool whole = span.count == CountOf(span.parameter);
        end = offset + RoundUp(end - offset, whole ? kAlignElements : multiple);
        layout_.offset[layout_.parameters[span.parameter]] = end;
      }
      end += span.count;
      covered_[span.parameter] += span.count;
      last_ = span.parameter;
      layout_.buckets_of[span.parameter].push_back(static_cast<int32_t>(layout_.buckets.size()));
    }
    if (!problem_.ok() || !AcceptEnd()) return;
    if (IsComplete(last_)) end = offset + RoundUp(end - offset, multiple);
    layout_.buckets.push_back({.offset = offset,
                               .count = end - offset,
                               .priority = priority,
                               .stages = stages,
                               .spans = {spans.begin(), spans.end()}});
  }

  Status Finish() {
    for (uint32_t i = 0; i < covered_.size(); ++i) {
      if (IsComplete(i)) continue;
      Reject("%lld of %lld elements of '%s'", Long(covered_[i]), Long(CountOf(i)),
             NameOf(i).c_str());
    }
    layout_.trainable_count = RoundUp(layout_.trainable_count, kAlignElements);
    if (problem_.ok()) return {};
    return Status::Error(StatusCode::kPlugin,
                         "its plan has %s; buckets must cover every parameter once and in order",
                         problem_.message());
  }

 private:
  int64_t CountOf(uint32_t position) const { return model_.parameters[position].count; }
  std::string NameOf(uint32_t position) const {
    return std::string(model_.parameters[position].name);
  }
  bool IsComplete(uint32_t position) const { return covered_[position] == CountOf(position); }

  // A span begins a parameter, or goes on exactly where the span before it ended.
  bool Accept(const BucketSpan& span, bool is_only_one) {
    if (span.parameter >= covered_.size())
      return Reject("parameter %u, which does not exist", span.parameter);
    const int64_t covered = covered_[span.parameter], count = CountOf(span.parameter);
    if (model_.parameters[span.parameter].alone != 0 && !(is_only_one && span.count == count)) {
      return Reject("'%s' in parts or beside others, although it must be a bucket of its own",
                    NameOf(span.parameter).c_str());
    }
    const bool continues = span.offset == covered && (covered == 0 || last_ == span.parameter);
    if (continues && span.count > 0 && span.count <= count - covered) return true;
    return Reject("elements %lld+%lld of '%s' after %lld of its %lld", Long(span.offset),
                  Long(span.count), NameOf(span.parameter).c_str(), Long(covered), Long(count));
  }

  // A bucket ends inside of a parameter only where all ranks can share what there is so far.
  bool AcceptEnd() {
    if (IsComplete(last_) || covered_[last_] % model_.slice_multiple == 0) return true;
    return Reject("a cut of '%s' after %lld elements, which is no multiple of %lld",
                  NameOf(last_).c_str(), Long(covered_[last_]), Long(model_.slice_multiple));
  }

  // The first one stays.
  template <typename... Args>
  bool Reject(const char* format, Args... args) {
    if (problem_.ok()) problem_ = Status::Error(StatusCode::kPlugin, format, args...);
    return false;
  }

  const ModelInfo& model_;
  FlatLayout& layout_;
  std::vector<int64_t> covered_;
  uint32_t last_ = UINT32_MAX;
  Status problem_;
};

// Appends the parameters that have no place yet behind the others, then the buffers.
void PlaceRest(const graph::Graph& graph, FlatLayout* layout) {
  int64_t cursor = layout->trainable_count;
  const auto place = [&](bool buffers) {
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      if (layout->offset[i] != graph::kNone || graph.parameters[i].buffer != buffers) continue;
      layout->offset[i] = cursor;
      cursor = RoundUp(cursor + graph.parameters[i].shape.Count(), kAlignElements);
    }
  };
  place(false);
  layout->buffer_begin = cursor;
  place(true);
  layout->total_count = cursor;
}

// Parameters that ops read rounded are gathered so. They come first, and whatever a scheduler fuses
// in this order, the first of the others does not travel with them. Returns how many there are.
size_t PutRoundedFirst(const graph::Graph& graph, std::vector<ParameterInfo>* parameters) {
  const auto is_rounded = [&](const ParameterInfo& info) {
    return graph.IsReadRounded(graph.parameters[info.id]);
  };
  const auto others = std::stable_partition(parameters->begin(), parameters->end(), is_rounded);
  if (others != parameters->begin() && others != parameters->end()) others->alone = 1;
  return static_cast<size_t>(others - parameters->begin());
}

}  // namespace

std::vector<ParameterInfo> DescribeParameters(const graph::Graph& graph,
                                              const graph::Program& program) {
  std::vector<ParameterInfo> infos;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const std::vector<int32_t>& users = program.users_of_parameter[i];
    if (users.empty()) continue;
    infos.push_back({.id = static_cast<uint32_t>(i),
                     .first_use = static_cast<uint32_t>(users.front()),
                     .ready = static_cast<uint32_t>(users.back()),
                     .count = graph.parameters[i].shape.Count(),
                     .name = graph.parameters[i].name});
  }
  std::ranges::stable_sort(infos, {}, &ParameterInfo::ready);
  return infos;
}

Result<FlatLayout> MakeLayout(const graph::Graph& graph, const ModelInfo& model,
                              Scheduler& scheduler, const std::string& scheduler_name) {
  std::vector<ParameterInfo> parameters(model.parameters.begin(), model.parameters.end());
  const size_t rounded = model.sharded != 0 ? PutRoundedFirst(graph, &parameters) : 0;
  if (rounded > 0 && (model.communicator.dtypes & Bit(DType::kBFloat16)) == 0) {
    return Status::Error(StatusCode::kConfig,
                         "train.shard_optimizer gathers parameters that are read in bfloat16 so, "
                         "which this communicator cannot: set it to false or choose another one");
  }
  FlatLayout layout;
  layout.offset.assign(graph.parameters.size(), graph::kNone);
  for (ParameterInfo& parameter : parameters) {
    layout.parameters.push_back(static_cast<int32_t>(parameter.id));
    parameter.id = static_cast<uint32_t>(layout.parameters.size()) - 1;
  }
  ModelInfo numbered = model;
  numbered.parameters = parameters;
  LayoutSink sink(numbered, &layout);
  Status planned = plugin::Answer(scheduler.Plan(numbered, sink));
  if (planned.ok()) planned = sink.Finish();
  ENGINE_RETURN_IF_ERROR(planned.WithContext("scheduler '%s'", scheduler_name.c_str()));
  const auto is_rounded = [&](const BucketSpan& span) { return span.parameter < rounded; };
  for (BucketLayout& bucket : layout.buckets) {
    if (std::ranges::none_of(bucket.spans, is_rounded)) continue;
    bucket.gathered = DType::kBFloat16;
    if (std::ranges::all_of(bucket.spans, is_rounded)) continue;
    return Status::Error(StatusCode::kPlugin,
                         "scheduler '%s' puts parameters that are gathered in bfloat16 into one "
                         "bucket with others",
                         scheduler_name.c_str());
  }
  PlaceRest(graph, &layout);
  return layout;
}

FlatLayout InferenceLayout(const graph::Graph& graph) {
  FlatLayout layout;
  layout.offset.assign(graph.parameters.size(), graph::kNone);
  PlaceRest(graph, &layout);
  return layout;
}

}  // namespace engine::exec
