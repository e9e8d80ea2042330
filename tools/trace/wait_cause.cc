#include "tools/trace/wait_cause.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace engine {
namespace {

// Less is what a thread takes to wake up.
constexpr int64_t kLateNs = 100000;

int64_t Overlap(const Interval& a, const Interval& b) {
  return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

__attribute__((format(printf, 1, 2))) std::string Sentence(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  return text;
}

double Ms(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

}  // namespace

CauseFinder::CauseFinder(const std::vector<TimelineIndex>& ranks) : ranks_(ranks) {
  for (const TimelineIndex& rank : ranks) {
    int64_t longest = 0;
    for (const Span* span : rank.transfers()) {
      longest = std::max(longest, span->end_ns - span->begin_ns);
    }
    longest_transfer_ns_.push_back(longest);
  }
}

WaitCause CauseFinder::Explain(size_t position, const WaitStory& story) const {
  const Interval wait{story.wait->begin_ns, story.wait->end_ns};
  const Span* transfer = story.transfer;
  // A wait in a flush may be ended by no task.
  if (story.ender == nullptr) transfer = LastEndedWithin(position, wait);
  if (transfer != nullptr && transfer->end_ns > wait.begin) {
    return ExplainTransfer(position, *transfer, wait);
  }
  WaitCause cause{.part_ns = wait.end - wait.begin};
  if (story.ender == nullptr) {
    cause.text = "not known: the trace has neither the task nor a transfer that ended the wait";
  } else if (story.ender->ready_ns != 0 && story.ender->ready_ns <= wait.begin) {
    cause.kind = CauseKind::kHeld;
    cause.text = "the scheduler: the task was ready all the time";
  } else {
    cause.text = "not known: no transfer ended the wait; was a batch late?";
  }
  return cause;
}

// When a transfer became ready only late in the wait, what it waited for itself is the cause.
const Span& CauseFinder::Origin(size_t position, const Span& transfer, Interval* wait) const {
  const Span* origin = &transfer;
  for (;;) {
    const int64_t ready_ns = PhasesOf(*origin).ready_ns;
    const Span* before = ranks_[position].SourceTransfer(*origin);
    if (before == nullptr || ready_ns - wait->begin <= (wait->end - wait->begin) / 2) {
      return *origin;
    }
    origin = before;
    wait->end = std::min(wait->end, ready_ns);
  }
}

WaitCause CauseFinder::ExplainTransfer(size_t position, const Span& last, Interval wait) const {
  const Span& transfer = Origin(position, last, &wait);
  if (ranks_[position].Is(transfer, TransferKind::kPush)) {
    return ExplainPush(position, transfer, wait);
  }
  if (ranks_[position].Is(transfer, TransferKind::kPull)) {
    return ExplainPull(position, transfer, wait);
  }
  const TransferPhases own = PhasesOf(transfer);
  const Meeting meeting = Meet(position, transfer);
  const auto late = [&](size_t other, const Interval& part) {
    const int64_t clock_error_ns =
        ranks_[position].timeline().clock_error_ns + ranks_[other].timeline().clock_error_ns;
    return part.end - part.begin > kLateNs + clock_error_ns ? Overlap(wait, part) : 0;
  };
  // The way of the transfer, cut into what each is to blame for.
  const int64_t ready_ns = std::max(own.ready_ns, meeting.ready_ns);
  const Interval held{ready_ns, own.begin_ns};
  const Interval stuck{meeting.submitted_ns, meeting.wire_ns};
  const int64_t ready_late_ns = late(meeting.ready_position, {own.ready_ns, meeting.ready_ns});
  const int64_t submitted_late_ns =
      late(meeting.submitted_position, {std::max(own.begin_ns, ready_ns), meeting.submitted_ns});
  const int64_t held_ns = Overlap(wait, held), stuck_ns = Overlap(wait, stuck);
  const int64_t wire_ns = Overlap(wait, {meeting.wire_ns, own.end_ns});
  const int64_t most_ns = std::max({ready_late_ns, submitted_late_ns, held_ns + stuck_ns, wire_ns});

  WaitCause cause;
  if (ready_late_ns > 0 && ready_late_ns == most_ns) {
    cause = ReadyLate(position, transfer, meeting);
  } else if (submitted_late_ns > 0 && submitted_late_ns == most_ns) {
    cause = SubmittedLate(position, transfer, meeting);
  } else if (wire_ns == most_ns) {
    cause = Wire(position, transfer, meeting.wire_ns);
  } else {
    cause = Queue(position, transfer, held_ns >= stuck_ns ? held : stuck);
  }
  cause.part_ns = most_ns;
  cause.transfer = &transfer;
  return cause;
}

WaitCause CauseFinder::Wire(size_t position, const Span& transfer, int64_t begin_ns) const {
  const auto bytes = static_cast<double>(ranks_[position].TaskOf(transfer).size_bytes);
  WaitCause cause{.kind = CauseKind::kWire};
  cause.text =
      Sentence("the wire: %.3g MB in %.2f ms", bytes / 1e6, Ms(transfer.end_ns - begin_ns));
  return cause;
}

// No other rank has to do with it.
WaitCause CauseFinder::ExplainPush(size_t position, const Span& push, const Interval& wait) const {
  const TransferPhases own = PhasesOf(push);
  const Interval held{own.ready_ns, own.begin_ns}, stuck{own.begin_ns, own.wire_ns};
  const int64_t held_ns = Overlap(wait, held), stuck_ns = Overlap(wait, stuck);
  const int64_t wire_ns = Overlap(wait, {own.wire_ns, own.end_ns});
  WaitCause cause = wire_ns >= held_ns + stuck_ns
                        ? Wire(position, push, own.wire_ns)
                        : Queue(position, push, held_ns >= stuck_ns ? held : stuck);
  cause.part_ns = std::max(wire_ns, held_ns + stuck_ns);
  cause.transfer = &push;
  return cause;
}

// Servers hold it until the last rank has pushed. What comes then is the wire, or the queue of
// pulls that they answer before it.
WaitCause CauseFinder::ExplainPull(size_t position, const Span& pull, const Interval& wait) const {
  const TransferPhases own = PhasesOf(pull);
  size_t last = position;
  const Span* last_push = nullptr;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Span* there = i == position ? nullptr : ranks_[i].Find(pull.task, pull.step);
    const Span* push = there == nullptr ? nullptr : ranks_[i].PushOf(*there);
    if (push == nullptr || (last_push != nullptr && push->end_ns <= last_push->end_ns)) continue;
    last = i;
    last_push = push;
  }
  const int64_t pushed_ns = last_push == nullptr ? own.begin_ns : last_push->end_ns;
  const int64_t released_ns = std::clamp(pushed_ns, own.begin_ns, own.end_ns);
  const int64_t clock_error_ns =
      ranks_[position].timeline().clock_error_ns + ranks_[last].timeline().clock_error_ns;
  const bool is_late = released_ns - own.begin_ns > kLateNs + clock_error_ns;
  const Interval held{own.ready_ns, own.begin_ns};
  const int64_t late_ns = is_late ? Overlap(wait, {own.begin_ns, released_ns}) : 0;
  const int64_t held_ns = Overlap(wait, held);
  const int64_t wire_ns = Overlap(wait, {released_ns, own.end_ns});

  WaitCause cause;
  if (late_ns > 0 && late_ns >= std::max(held_ns, wire_ns)) {
    cause = PushedLate(position, pull, last, *last_push);
  } else if (wire_ns >= held_ns) {
    cause = Wire(position, pull, released_ns);
  } else {
    cause = Queue(position, pull, held);
  }
  cause.part_ns = std::max({late_ns, held_ns, wire_ns});
  cause.transfer = &pull;
  return cause;
}

WaitCause CauseFinder::PushedLate(size_t position, const Span& pull, size_t other,
                                  const Span& push_there) const {
  const TransferPhases there = PhasesOf(push_there);
  const int64_t late_ns = there.end_ns - pull.begin_ns;
  WaitCause cause{.kind = CauseKind::kLateRank};
  cause.rank = ranks_[other].timeline().rank;
  cause.text = Sentence("rank %d pushed it %.2f ms after rank %d had asked for it: ", cause.rank,
                        Ms(late_ns), ranks_[position].timeline().rank);
  const Span* here = ranks_[position].PushOf(pull);
  const int64_t ready_late_ns = here == nullptr ? 0 : there.ready_ns - PhasesOf(*here).ready_ns;
  const int64_t queued_ns = there.wire_ns - there.ready_ns;
  if (ready_late_ns > late_ns / 2) {
    Meeting meeting;
    meeting.ready_position = other;
    meeting.ready_span = &push_there;
    cause.text += WhyLate(position, *here, meeting, ready_late_ns);
  } else if (queued_ns > there.end_ns - there.wire_ns) {
    cause.text += "there it was in ";
    cause.text += Queue(other, push_there, {there.ready_ns, there.wire_ns}).text;
  } else {
    cause.text += Sentence("its push took %.2f ms", Ms(there.end_ns - there.wire_ns));
  }
  return cause;
}

CauseFinder::Meeting CauseFinder::Meet(size_t position, const Span& transfer) const {
  const TransferPhases own = PhasesOf(transfer);
  Meeting meeting{position,     position,     &transfer,  &transfer,
                  own.ready_ns, own.begin_ns, own.wire_ns};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Span* span = i == position ? nullptr : ranks_[i].Find(transfer.task, transfer.step);
    if (span == nullptr) continue;
    const TransferPhases phases = PhasesOf(*span);
    meeting.wire_ns = std::max(meeting.wire_ns, phases.wire_ns);
    if (phases.ready_ns > meeting.ready_ns) {
      meeting.ready_position = i;
      meeting.ready_span = span;
      meeting.ready_ns = phases.ready_ns;
    }
    if (phases.begin_ns > meeting.submitted_ns) {
      meeting.submitted_position = i;
      meeting.submitted_span = span;
      meeting.submitted_ns = phases.begin_ns;
    }
  }
  // Clocks of several hosts may disagree by a little.
  meeting.ready_ns = std::min(meeting.ready_ns, own.end_ns);
  meeting.submitted_ns = std::min(meeting.submitted_ns, own.end_ns);
  meeting.wire_ns = std::clamp(meeting.wire_ns, meeting.submitted_ns, own.end_ns);
  return meeting;
}

WaitCause CauseFinder::ReadyLate(size_t position, const Span& transfer,
                                 const Meeting& meeting) const {
  const int64_t late_ns = meeting.ready_ns - PhasesOf(transfer).ready_ns;
  WaitCause cause{.kind = CauseKind::kLateRank};
  cause.rank = ranks_[meeting.ready_position].timeline().rank;
  cause.text = Sentence("rank %d had it ready %.2f ms later than rank %d: ", cause.rank,
                        Ms(late_ns), ranks_[position].timeline().rank);
  cause.text += WhyLate(position, transfer, meeting, late_ns);
  return cause;
}

WaitCause CauseFinder::SubmittedLate(size_t position, const Span& transfer,
                                     const Meeting& meeting) const {
  const TransferPhases there = PhasesOf(*meeting.submitted_span);
  WaitCause cause{.kind = CauseKind::kLateRank};
  cause.rank = ranks_[meeting.submitted_position].timeline().rank;
  cause.text =
      Sentence("rank %d submitted it %.2f ms later than rank %d: there it was in ", cause.rank,
               Ms(meeting.submitted_ns - transfer.begin_ns), ranks_[position].timeline().rank);
  cause.text +=
      Queue(meeting.submitted_position, *meeting.submitted_span, {there.ready_ns, there.begin_ns})
          .text;
  return cause;
}

// What took longer on the late rank than on this one, if that explains most of it; else what ended
// just before.
std::string CauseFinder::WhyLate(size_t position, const Span& transfer, const Meeting& meeting,
                                 int64_t late_ns) const {
  const TimelineIndex& rank = ranks_[meeting.ready_position];
  int64_t sum_ns = 0, largest_ns = 0;
  const Span* largest = nullptr;
  for (uint32_t task = 0; task < transfer.task; ++task) {
    const Span* there = rank.Find(task, transfer.step);
    const Span* here = ranks_[position].Find(task, transfer.step);
    if (there == nullptr || here == nullptr || rank.IsTransfer(*there) ||
        there->end_ns > meeting.ready_span->begin_ns) {
      continue;
    }
    const int64_t longer_ns = there->end_ns - there->begin_ns - (here->end_ns - here->begin_ns);
    sum_ns += longer_ns;
    if (longer_ns <= largest_ns) continue;
    largest_ns = longer_ns;
    largest = there;
  }
  const std::string name = largest == nullptr ? "" : rank.TaskOf(*largest).name;
  if (largest_ns > late_ns / 2) {
    return Sentence("its %s took %.2f ms longer", name.c_str(), Ms(largest_ns));
  }
  if (sum_ns > late_ns / 2) {
    return Sentence("its tasks of this step took %.2f ms longer, most of all %s (%.2f ms)",
                    Ms(sum_ns), name.c_str(), Ms(largest_ns));
  }
  // Behind bookkeeping stands the work.
  const Span* reason = rank.LastDependency(*meeting.ready_span);
  while (reason != nullptr && (rank.TaskOf(*reason).kind == TaskKind::kAccumulate ||
                               rank.TaskOf(*reason).kind == TaskKind::kHook)) {
    reason = rank.LastDependency(*reason);
  }
  if (reason == nullptr) return "the trace does not say why";
  return Sentence("its %s ended late", rank.TaskOf(*reason).name.c_str());
}

WaitCause CauseFinder::Queue(size_t position, const Span& transfer, const Interval& queued) const {
  const Span* blocker = Blocker(position, queued, &transfer);
  const double ms = Ms(queued.end - queued.begin);
  WaitCause cause;
  if (blocker == nullptr) {
    cause.kind = CauseKind::kHeld;
    cause.text = Sentence("the queue for %.2f ms, though nothing else was under way", ms);
  } else {
    cause.kind = CauseKind::kQueue;
    cause.text = Sentence("the queue for %.2f ms, behind %s", ms,
                          ranks_[position].TaskOf(*blocker).name.c_str());
  }
  return cause;
}

const Span* CauseFinder::LastEndedWithin(size_t position, const Interval& window) const {
  const Span* last = nullptr;
  for (const Span* span : ranks_[position].transfers()) {
    if (span->begin_ns > window.end) break;
    const bool within = span->end_ns > window.begin && span->end_ns <= window.end;
    if (within && (last == nullptr || span->end_ns > last->end_ns)) last = span;
  }
  return last;
}

const Span* CauseFinder::Blocker(size_t position, const Interval& window,
                                 const Span* except) const {
  const std::vector<const Span*>& transfers = ranks_[position].transfers();
  const int64_t earliest = window.begin - longest_transfer_ns_[position];
  auto it = std::lower_bound(transfers.begin(), transfers.end(), earliest,
                             [](const Span* span, int64_t time) { return span->begin_ns < time; });
  const Span* blocker = nullptr;
  int64_t longest = 0;
  for (; it != transfers.end() && (*it)->begin_ns < window.end; ++it) {
    const int64_t overlap = Overlap(window, {PhasesOf(**it).wire_ns, (*it)->end_ns});
    if (*it == except || overlap <= longest) continue;
    longest = overlap;
    blocker = *it;
  }
  return blocker;
}

}  // namespace engine
