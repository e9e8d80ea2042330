#include "tools/trace/summary.h"

#include <algorithm>

namespace engine::trace {
namespace {

class Summarizer {
 public:
  Summarizer(const std::vector<TimelineIndex>& ranks, StepChoice choice,
             const SummaryOptions& options)
      : ranks_(ranks), choice_(std::move(choice)), options_(options) {}

  TraceSummary Run() {
    summary_.world_size = ranks_[0].timeline().world_size;
    summary_.steps = choice_.steps;
    summary_.left_out = choice_.left_out;
    for (const TimelineIndex& rank : ranks_) {
      summary_.dropped += rank.timeline().dropped;
      summary_.clock_error_ns = std::max(summary_.clock_error_ns, rank.timeline().clock_error_ns);
    }
    AddStepFigures();
    AddEfficiency();
    AddInversions();
    AddWaits();
    return std::move(summary_);
  }

 private:
  bool Counts(uint64_t step) const {
    return std::binary_search(choice_.steps.begin(), choice_.steps.end(), step);
  }

  void AddStepFigures() {
    std::vector<StepFigures> all;
    std::vector<double> lengths;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const StepMeter meter(ranks_[i]);
      std::vector<StepFigures> steps;
      for (uint64_t step : choice_.steps) {
        steps.push_back(meter.Measure(step, choice_.windows[i].at(step)));
        lengths.push_back(steps.back().step);
      }
      summary_.ranks.emplace_back(ranks_[i].timeline().rank, Medians(steps));
      all.insert(all.end(), steps.begin(), steps.end());
    }
    summary_.all = Medians(all);
    summary_.step_p10_ns = Quantile(lengths, 0.1);
    summary_.step_p90_ns = Quantile(lengths, 0.9);
  }

  // While the link of the first rank was sending a bucket. A collective: from when all ranks had
  // begun with it to when all were done. A push has nothing to do with other ranks, and a pull
  // sends nothing.
  Intervals LinkBusy() const {
    std::vector<Interval> busy;
    const std::vector<TraceTask>& tasks = ranks_[0].timeline().tasks;
    for (uint64_t step : choice_.steps) {
      for (uint32_t task = 0; task < tasks.size(); ++task) {
        if (!MovesBucket(tasks[task]) || tasks[task].transfer == TransferKind::kPull) continue;
        const bool alone = tasks[task].transfer == TransferKind::kPush;
        Interval moving{INT64_MIN, INT64_MIN};
        for (size_t i = 0; i < (alone ? 1 : ranks_.size()); ++i) {
          const Span* span = ranks_[i].Find(task, step);
          if (span == nullptr) continue;
          moving.begin = std::max(moving.begin, PhasesOf(*span).wire_ns);
          moving.end = std::max(moving.end, span->end_ns);
        }
        busy.push_back(moving);
      }
    }
    return Union(busy);
  }

  // By step, what the link of a rank carries.
  std::vector<LinkLoad> LoadOfSteps() const {
    const RankTimeline& timeline = ranks_[0].timeline();
    std::vector<LinkLoad> loads;
    for (uint64_t step : choice_.steps) {
      LinkLoad load;
      for (uint32_t task = 0; task < timeline.tasks.size(); ++task) {
        if (!MovesBucket(timeline.tasks[task]) || ranks_[0].Find(task, step) == nullptr) continue;
        AddLinkBytes(timeline.tasks[task], timeline.world_size, &load);
      }
      loads.push_back(load);
    }
    return loads;
  }

  void AddEfficiency() {
    std::vector<double> bytes;
    double sent = 0;
    for (const LinkLoad& load : LoadOfSteps()) {
      bytes.push_back(load.larger());
      sent += load.out;
    }
    const double seconds = static_cast<double>(Length(LinkBusy())) / 1e9;
    summary_.link_bytes = Quantile(bytes, 0.5);
    summary_.goodput_given = options_.bandwidth > 0;
    summary_.goodput = summary_.goodput_given ? options_.bandwidth
                       : seconds > 0          ? sent / seconds
                                              : 0;
    for (const auto& [rank, figures] : summary_.ranks) {
      summary_.compute_ns = std::max(summary_.compute_ns, figures.forward + figures.backward);
    }
    if (summary_.goodput > 0) summary_.ideal_ns = summary_.link_bytes / summary_.goodput * 1e9;
    if (summary_.all.step > 0) {
      summary_.efficiency = std::max(summary_.compute_ns, summary_.ideal_ns) / summary_.all.step;
    }
  }

  void AddInversions() {
    const auto counts = [this](uint64_t step) { return Counts(step); };
    for (const TimelineIndex& rank : ranks_) {
      const Inversions submission = FindInversions(rank, TransferStart::kSubmission, counts);
      const Inversions first_byte = FindInversions(rank, TransferStart::kFirstByte, counts);
      summary_.submission.Add(submission);
      summary_.first_byte.Add(first_byte);
      summary_.submission_by_rank.push_back(submission.overtaken);
      summary_.first_byte_by_rank.push_back(first_byte.overtaken);
      for (const Span* span : rank.transfers()) {
        summary_.first_byte_known =
            summary_.first_byte_known || (span->wire_ns != 0 && MovesBucket(rank.TaskOf(*span)));
      }
    }
  }

  // The step within which `wait` begins.
  const uint64_t* StepOf(size_t position, const Span& wait) const {
    for (const uint64_t& step : choice_.steps) {
      const Interval& window = choice_.windows[position].at(step);
      if (wait.begin_ns >= window.begin && wait.begin_ns < window.end) return &step;
    }
    return nullptr;
  }

  void AddWaits() {
    const CauseFinder finder(ranks_);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      for (const StallRecord& stall : ranks_[i].Stalls()) {
        const uint64_t* step = StepOf(i, *stall.wait);
        if (step != nullptr) AddWait(i, *step, stall, finder.Explain(i, stall));
      }
    }
    std::vector<LongWait>& waits = summary_.longest_waits;
    std::stable_sort(waits.begin(), waits.end(),
                     [](const LongWait& a, const LongWait& b) { return a.wait_ns > b.wait_ns; });
    waits.resize(std::min(waits.size(), options_.longest_waits));
  }

  static std::string ForwardOf(const TimelineIndex& rank, const StallRecord& stall) {
    const std::vector<TraceTask>& tasks = rank.timeline().tasks;
    if (stall.forward != nullptr) {
      return stall.forward == stall.ended_by ? "" : tasks[stall.forward->task].name;
    }
    const uint32_t needed_by =
        stall.transfer == nullptr ? UINT32_MAX : rank.TaskOf(*stall.transfer).needed_by;
    return needed_by < tasks.size() ? tasks[needed_by].name : "";
  }

  void AddWait(size_t position, uint64_t step, const StallRecord& stall, const WaitCause& cause) {
    const TimelineIndex& rank = ranks_[position];
    const auto name = [&](const Span* span) {
      return span == nullptr ? std::string() : rank.TaskOf(*span).name;
    };
    LongWait wait{.step = step, .rank = rank.timeline().rank};
    wait.wait_ns = stall.wait->end_ns - stall.wait->begin_ns;
    if (stall.wait->task != kNoTask) wait.task = rank.timeline().tasks[stall.wait->task].name;
    wait.forward = ForwardOf(rank, stall);
    wait.transfer = name(cause.transfer != nullptr ? cause.transfer : stall.transfer);
    wait.cause = cause.kind;
    wait.cause_rank = cause.rank;
    wait.cause_ns = cause.part_ns;
    wait.cause_text = cause.text;
    summary_.waits_ns += static_cast<double>(wait.wait_ns);
    summary_.waits_by_cause_ns[static_cast<int32_t>(cause.kind)] +=
        static_cast<double>(wait.wait_ns);
    summary_.longest_waits.push_back(std::move(wait));
  }

  const std::vector<TimelineIndex>& ranks_;
  const StepChoice choice_;
  const SummaryOptions& options_;
  TraceSummary summary_;
};

}  // namespace

Result<TraceSummary> SummarizeTrace(Trace trace, const SummaryOptions& options) {
  std::vector<TimelineIndex> ranks;
  ranks.reserve(trace.ranks.size());
  for (RankTimeline& timeline : trace.ranks) {
    MoveToClockOfRankZero(timeline);
    ranks.emplace_back(timeline);
  }
  const StepRange* wanted = options.steps ? &*options.steps : nullptr;
  ENGINE_ASSIGN_OR_RETURN(StepChoice choice, ChooseSteps(ranks, wanted));
  TraceSummary summary = Summarizer(ranks, std::move(choice), options).Run();
  summary.metadata = std::move(trace.metadata);
  return summary;
}

}  // namespace engine::trace
