// A scheduler's plan becomes offsets: units one behind the other in the order of the plan, in a unit
// its spans, each from a multiple of a cache line on, or, where each rank gets a part of the unit,
// from a multiple of that for all ranks. A unit that ends inside of a parameter ends without
// padding, so that the parameter stays contiguous; such cuts are only where ranks can share them.
//
//   | unit 0 | unit 1 | ... | not trained | buffers |
//   '---- trainable_count ---'            '- buffer_begin
#include "core/exec/layout.h"

#include <algorithm>
#include <span>
#include <utility>

namespace engine::exec {
namespace {

constexpr int64_t kAlignElements = 16;  // 64 bytes: a cache line and a vector register

int64_t RoundUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

class LayoutSink final : public PlanSink {
 public:
  explicit LayoutSink(const ModelInfo& model)
      : model_(model), covered_(model.parameters.size(), 0) {
    offset_.resize(model.parameters.size());
    units_of_.resize(model.parameters.size());
  }

  void AddUnit(std::span<const UnitSpan> spans, int32_t priority,
               UnitStages stages) noexcept override {
    if (model_.sharded != 0) stages = UnitStages::kReduceScatterAllGather;
    if (model_.served != 0) stages = UnitStages::kAllReduce;
    // Each rank gets the same number of elements of a unit that is scattered.
    const int64_t multiple =
        stages == UnitStages::kAllReduce ? kAlignElements : model_.slice_multiple;
    UnitLayout unit{.offset = cursor_,
                    .priority = priority,
                    .stages = stages,
                    .spans = {spans.begin(), spans.end()}};
    if (spans.empty()) Reject("an empty unit");
    CheckAlone(spans);
    for (size_t i = 0; i < spans.size() && problem_.ok(); ++i) {
      const UnitSpan& span = spans[i];
      if (!Accept(span)) break;
      cursor_ = unit.offset + RoundUp(cursor_ - unit.offset, multiple);
      if (span.offset == 0) offset_[span.parameter] = cursor_;
      cursor_ += span.count;
      covered_[span.parameter] += span.count;
      last_ = span.parameter;
      units_of_[span.parameter].push_back(static_cast<int32_t>(units_.size()));
    }
    if (!CutsInside(spans)) cursor_ = unit.offset + RoundUp(cursor_ - unit.offset, multiple);
    unit.count = cursor_ - unit.offset;
    units_.push_back(std::move(unit));
  }

  Result<FlatLayout> Finish() {
    for (size_t i = 0; i < covered_.size() && problem_.ok(); ++i) {
      const ParameterInfo& parameter = model_.parameters[i];
      if (covered_[i] != parameter.count) {
        Reject("%lld of %lld elements of '%.*s'", static_cast<long long>(covered_[i]),
               static_cast<long long>(parameter.count), static_cast<int>(parameter.name.size()),
               parameter.name.data());
      }
    }
    if (!problem_.ok()) return problem_;
    FlatLayout layout;
    layout.units = std::move(units_);
    layout.units_of = std::move(units_of_);
    layout.trainable_count = RoundUp(cursor_, kAlignElements);
    layout.offset =
        std::move(offset_);  // still by position; MakeLayout maps it to graph parameters
    return layout;
  }

 private:
  // A span begins a parameter, or goes on exactly where the span before it ended.
  bool Accept(const UnitSpan& span) {
    if (span.parameter >= covered_.size())
      return Reject("parameter %u, which does not exist", span.parameter);
    const ParameterInfo& parameter = model_.parameters[span.parameter];
    const int64_t covered = covered_[span.parameter];
    const bool continues = span.offset == covered && (covered == 0 || last_ == span.parameter);
    if (continues && span.count > 0 && span.count <= parameter.count - covered) return true;
    return Reject("elements %lld+%lld of '%.*s' after %lld of its %lld",
                  static_cast<long long>(span.offset), static_cast<long long>(span.count),
                  static_cast<int>(parameter.name.size()), parameter.name.data(),
                  static_cast<long long>(covered), static_cast<long long>(parameter.count));
  }

  void CheckAlone(std::span<const UnitSpan> spans) {
    for (const UnitSpan& span : spans) {
      if (span.parameter >= covered_.size()) return;
      const ParameterInfo& parameter = model_.parameters[span.parameter];
      if (parameter.alone == 0 || (spans.size() == 1 && span.count == parameter.count)) continue;
      Reject("'%.*s' in parts or beside others, although it must be a unit of its own",
             static_cast<int>(parameter.name.size()), parameter.name.data());
    }
  }

  // Whether the unit ends inside of a parameter; only at multiples that all ranks can share.
  bool CutsInside(std::span<const UnitSpan> spans) {
    if (!problem_.ok()) return true;
    const ParameterInfo& parameter = model_.parameters[spans.back().parameter];
    const int64_t covered = covered_[spans.back().parameter];
    if (covered == parameter.count) return false;
    if (covered % model_.slice_multiple != 0) {
      Reject("a cut of '%.*s' after %lld elements, which is no multiple of %lld",
             static_cast<int>(parameter.name.size()), parameter.name.data(),
             static_cast<long long>(covered), static_cast<long long>(model_.slice_multiple));
    }
    return true;
  }

  template <typename... Args>
  bool Reject(const char* format, Args... args) {
    if (problem_.ok()) {
      char text[256];
      std::snprintf(text, sizeof(text), format, args...);
      problem_ = Status::Error(
          StatusCode::kPlugin,
          "its plan has %s; units must cover every parameter once and in order", text);
    }
    return false;
  }

  const ModelInfo& model_;
  std::vector<int64_t> covered_, offset_;
  std::vector<std::vector<int32_t>> units_of_;
  std::vector<UnitLayout> units_;
  int64_t cursor_ = 0;
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

bool IsReadRounded(const graph::Graph& graph, uint32_t parameter) {
  return graph.values[graph.parameters[parameter].value].spec.dtype == DType::kBFloat16;
}

// A unit of parameters that ops read in both ways would have to be gathered in float32. So those
// that are read rounded come first, and whatever a scheduler fuses, the first of the others does
// not travel with them.
void PutRoundedFirst(const graph::Graph& graph, std::vector<ParameterInfo>* parameters) {
  const auto others = std::stable_partition(
      parameters->begin(), parameters->end(),
      [&graph](const ParameterInfo& parameter) { return IsReadRounded(graph, parameter.id); });
  if (others != parameters->begin() && others != parameters->end()) others->alone = 1;
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
  std::stable_sort(infos.begin(), infos.end(), [](const ParameterInfo& a, const ParameterInfo& b) {
    return a.ready < b.ready;
  });
  return infos;
}

int64_t SliceMultiple(int32_t world_size) {
  return kAlignElements * world_size;
}

Result<FlatLayout> MakeLayout(const graph::Graph& graph, const ModelInfo& model,
                              Scheduler& scheduler, const std::string& scheduler_name) {
  std::vector<ParameterInfo> parameters(model.parameters.begin(), model.parameters.end());
  const bool rounds =
      model.sharded != 0 && (model.communicator.dtypes & Bit(DType::kBFloat16)) != 0;
  if (rounds) PutRoundedFirst(graph, &parameters);
  // A scheduler addresses parameters by their position.
  std::vector<ParameterInfo> positions = parameters;
  for (size_t i = 0; i < positions.size(); ++i) positions[i].id = static_cast<uint32_t>(i);
  ModelInfo numbered = model;
  numbered.parameters = positions;
  LayoutSink sink(numbered);
  ENGINE_RETURN_IF_ERROR(
      scheduler.Plan(numbered, sink).WithContext("scheduler '%s'", scheduler_name.c_str()));
  auto made = sink.Finish();
  if (!made.ok()) return made.status().WithContext("scheduler '%s'", scheduler_name.c_str());
  FlatLayout layout = std::move(*made);
  const std::vector<int64_t> offset_of_position = std::move(layout.offset);
  layout.offset.assign(graph.parameters.size(), graph::kNone);
  for (size_t i = 0; i < parameters.size(); ++i) {
    layout.parameters.push_back(static_cast<int32_t>(parameters[i].id));
    layout.offset[parameters[i].id] = offset_of_position[i];
  }
  for (UnitLayout& unit : layout.units) {
    const bool rounded = std::all_of(
        unit.spans.begin(), unit.spans.end(),
        [&](const UnitSpan& span) { return IsReadRounded(graph, parameters[span.parameter].id); });
    if (rounds && rounded) unit.gathered = DType::kBFloat16;
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
