#include "tools/trace/steady_steps.h"

#include <algorithm>
#include <cinttypes>
#include <set>

namespace engine::trace {
namespace {

constexpr size_t kWarmUpSteps = 2;

// Of a rank: where its steps begin and end, without those of which the ring lost something. It
// loses what ended first.
std::map<uint64_t, Interval> WholeSteps(const TimelineIndex& rank) {
  const RankTimeline& timeline = rank.timeline();
  int64_t lost_until = INT64_MIN;
  if (timeline.dropped > 0 && !timeline.spans.empty()) lost_until = timeline.spans[0].end_ns;
  std::map<uint64_t, Interval> steps;
  for (const Span* span : rank.steps()) {
    if (span->begin_ns >= lost_until) steps[span->step] = {span->begin_ns, span->end_ns};
  }
  return steps;
}

// A flush takes time from the step that it ends, if it lies within, and leaves nothing to be hidden
// in the step after it.
void AddFlushed(const TimelineIndex& rank, const std::map<uint64_t, Interval>& steps,
                std::set<uint64_t>* flushed) {
  for (const Span* flush : rank.flushes()) {
    const uint64_t* next = nullptr;
    for (const auto& [step, window] : steps) {
      if (flush->begin_ns < window.end && flush->end_ns > window.begin) flushed->insert(step);
      if (next == nullptr && window.begin >= flush->end_ns) next = &step;
    }
    if (next != nullptr) flushed->insert(*next);
  }
}

using Windows = std::vector<std::map<uint64_t, Interval>>;

std::vector<uint64_t> CommonSteps(const Windows& windows) {
  std::vector<uint64_t> steps;
  for (const auto& [step, window] : windows[0]) {
    const uint64_t wanted = step;
    if (std::all_of(windows.begin(), windows.end(),
                    [&](const auto& rank) { return rank.contains(wanted); })) {
      steps.push_back(step);
    }
  }
  return steps;
}

std::vector<uint64_t> Without(const std::vector<uint64_t>& steps,
                              const std::vector<uint64_t>& others) {
  std::vector<uint64_t> rest;
  std::set_difference(steps.begin(), steps.end(), others.begin(), others.end(),
                      std::back_inserter(rest));
  return rest;
}

// Leaves `others` out unless nothing would be left.
void LeaveOut(const std::vector<uint64_t>& others, const char* why, StepChoice* choice) {
  const std::vector<uint64_t> rest = Without(choice->steps, others);
  if (rest.empty() || rest.size() == choice->steps.size()) return;
  choice->left_out += (choice->left_out.empty() ? "" : ", ") +
                      Ranges(Without(choice->steps, rest)) + " (" + why + ")";
  choice->steps = rest;
}

}  // namespace

Result<StepChoice> ChooseSteps(const std::vector<TimelineIndex>& ranks, const StepRange* wanted) {
  StepChoice choice;
  bool whole_run = true;
  for (const TimelineIndex& rank : ranks) {
    choice.windows.push_back(WholeSteps(rank));
    whole_run = whole_run && rank.timeline().dropped == 0;
  }
  choice.steps = CommonSteps(choice.windows);
  if (choice.steps.empty()) {
    return Status::Error(StatusCode::kBadData,
                         "no step of this trace is whole on all ranks; trace at least one step");
  }
  if (wanted != nullptr) {
    const std::vector<uint64_t> all = choice.steps;
    std::erase_if(choice.steps,
                  [&](uint64_t step) { return step < wanted->first || step > wanted->last; });
    if (!choice.steps.empty()) return choice;
    return Status::Error(StatusCode::kInvalidArgument,
                         "none of the steps %" PRIu64 "..%" PRIu64
                         " is whole in this trace; it has %s",
                         wanted->first, wanted->last, Ranges(all).c_str());
  }
  std::vector<uint64_t> warm_up;
  // Of a run that lost spans, the first steps are gone anyway.
  if (whole_run) {
    warm_up.assign(choice.steps.begin(),
                   choice.steps.begin() + std::min(choice.steps.size(), kWarmUpSteps));
  }
  std::set<uint64_t> flushed;
  for (size_t i = 0; i < ranks.size(); ++i) AddFlushed(ranks[i], choice.windows[i], &flushed);
  LeaveOut(warm_up, "warm-up", &choice);
  LeaveOut({flushed.begin(), flushed.end()}, "with or after a flush", &choice);
  return choice;
}

std::string Ranges(const std::vector<uint64_t>& numbers) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    text.append(text.empty() ? "" : ", ").append(std::to_string(numbers[begin]));
    if (end - begin > 1) text.append("..").append(std::to_string(numbers[end - 1]));
  }
  return text;
}

}  // namespace engine::trace
