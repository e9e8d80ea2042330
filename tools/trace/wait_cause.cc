#include "tools/trace/wait_cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace engine::trace {
namespace {

// Less is what a thread takes to wake up.
constexpr int64_t kLateNs = 100000;

int64_t Overlap(const Interval& a, const Interval& b) {
  return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
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

WaitCause CauseFinder::Explain(size_t position, const StallRecord& stall) const {
  const Interval wait{stall.wait->begin_ns, stall.wait->end_ns};
  const Span* transfer = stall.transfer;
  // A wait in a flush may be ended by no task.
  if (stall.ended_by == nullptr) transfer = LastEndedWithin(position, wait);
  if (transfer != nullptr && transfer->end_ns > wait.begin) {
    return ExplainTransfer(position, *transfer, wait);
  }
  WaitCause cause{.part_ns = wait.end - wait.begin};
  if (stall.ended_by == nullptr) {
    cause.text = "not known: the trace has neither the task nor a transfer that ended the wait";
  } else if (stall.ended_by->ready_ns != 0 && stall.ended_by->ready_ns <= wait.begin) {
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
  const TransferPhases own = PhasesOf(transfer);
  const Alignment all = Align(position, transfer);
  const auto late = [&](size_t other, const Interval& part) {
    const int64_t clock_error_ns =
        ranks_[position].timeline().clock_error_ns + ranks_[other].timeline().clock_error_ns;
    return part.end - part.begin > kLateNs + clock_error_ns ? Overlap(wait, part) : 0;
  };
  // The way of the transfer, cut into what each is to blame for.
  const int64_t ready_ns = std::max(own.ready_ns, all.ready_ns);
  const Interval held{ready_ns, own.begin_ns};
  const Interval stuck{all.submitted_ns, all.wire_ns};
  const int64_t ready_late_ns = late(all.ready_position, {own.ready_ns, all.ready_ns});
  const int64_t submitted_late_ns =
      late(all.submitted_position, {std::max(own.begin_ns, ready_ns), all.submitted_ns});
  const int64_t held_ns = Overlap(wait, held), stuck_ns = Overlap(wait, stuck);
  const int64_t wire_ns = Overlap(wait, {all.wire_ns, own.end_ns});
  const int64_t most_ns = std::max({ready_late_ns, submitted_late_ns, held_ns + stuck_ns, wire_ns});

  WaitCause cause;
  if (ready_late_ns > 0 && ready_late_ns == most_ns) {
    cause = ReadyLate(position, transfer, all);
  } else if (submitted_late_ns > 0 && submitted_late_ns == most_ns) {
    const bool is_pull = ranks_[position].Is(transfer, TransferKind::kPull);
    cause = is_pull ? PushedLate(position, transfer, all) : SubmittedLate(position, transfer, all);
  } else if (wire_ns == most_ns) {
    cause = Wire(position, transfer, all.wire_ns);
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
      fmt::format("the wire: {:.3g} MB in {:.2f} ms", bytes / 1e6, Ms(transfer.end_ns - begin_ns));
  return cause;
}

WaitCause CauseFinder::PushedLate(size_t position, const Span& pull, const Alignment& all) const {
  const size_t other = all.submitted_position;
  const Span& push_there = *all.submitted_span;
  const TransferPhases there = PhasesOf(push_there);
  const int64_t late_ns = there.end_ns - pull.begin_ns;
  WaitCause cause{.kind = CauseKind::kLateRank};
  cause.rank = ranks_[other].timeline().rank;
  cause.text =
      fmt::format("rank {} pushed it {:.2f} ms after rank {} had asked for it: ", cause.rank,
                  Ms(late_ns), ranks_[position].timeline().rank);
  const Span* here = ranks_[position].PushOf(pull);
  const int64_t ready_late_ns = here == nullptr ? 0 : there.ready_ns - PhasesOf(*here).ready_ns;
  const int64_t queued_ns = there.wire_ns - there.ready_ns;
  if (ready_late_ns > late_ns / 2) {
    cause.text += WhyLate(position, *here, other, push_there, ready_late_ns);
  } else if (queued_ns > there.end_ns - there.wire_ns) {
    cause.text += "there it was in ";
    cause.text += Queue(other, push_there, {there.ready_ns, there.wire_ns}).text;
  } else {
    cause.text += fmt::format("its push took {:.2f} ms", Ms(there.end_ns - there.wire_ns));
  }
  return cause;
}

// A push has nothing to do with other ranks. Servers hold a pull until the last rank has pushed:
// that counts as its submission. What comes then is the wire, or the queue of pulls that they
// answer before it.
CauseFinder::Alignment CauseFinder::Align(size_t position, const Span& transfer) const {
  const TransferPhases own = PhasesOf(transfer);
  Alignment all{position, position, &transfer, &transfer, own.ready_ns, own.begin_ns, own.wire_ns};
  if (ranks_[position].Is(transfer, TransferKind::kPush)) return all;
  const bool is_pull = ranks_[position].Is(transfer, TransferKind::kPull);
  if (is_pull) all.wire_ns = own.begin_ns;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Span* span = i == position ? nullptr : ranks_[i].Find(transfer.task, transfer.step);
    if (span != nullptr && is_pull) span = ranks_[i].PushOf(*span);
    if (span == nullptr) continue;
    const TransferPhases phases = PhasesOf(*span);
    if (!is_pull) all.wire_ns = std::max(all.wire_ns, phases.wire_ns);
    if (!is_pull && phases.ready_ns > all.ready_ns) {
      all.ready_position = i;
      all.ready_span = span;
      all.ready_ns = phases.ready_ns;
    }
    const int64_t submitted_ns = is_pull ? phases.end_ns : phases.begin_ns;
    if (submitted_ns > all.submitted_ns) {
      all.submitted_position = i;
      all.submitted_span = span;
      all.submitted_ns = submitted_ns;
    }
  }
  // Clocks of several hosts may disagree by a little.
  all.ready_ns = std::min(all.ready_ns, own.end_ns);
  all.submitted_ns = std::min(all.submitted_ns, own.end_ns);
  all.wire_ns = std::clamp(all.wire_ns, all.submitted_ns, own.end_ns);
  return all;
}

WaitCause CauseFinder::ReadyLate(size_t position, const Span& transfer,
                                 const Alignment& all) const {
  const int64_t late_ns = all.ready_ns - PhasesOf(transfer).ready_ns;
  WaitCause cause{.kind = CauseKind::kLateRank};
  cause.rank = ranks_[all.ready_position].timeline().rank;
  cause.text = fmt::format("rank {} had it ready {:.2f} ms later than rank {}: ", cause.rank,
                           Ms(late_ns), ranks_[position].timeline().rank);
  cause.text += WhyLate(position, transfer, all.ready_position, *all.ready_span, late_ns);
  return cause;
}

WaitCause CauseFinder::SubmittedLate(size_t position, const Span& transfer,
                                     const Alignment& all) const {
  const TransferPhases there = PhasesOf(*all.submitted_span);
  WaitCause cause{.kind = CauseKind::kLateRank};
  cause.rank = ranks_[all.submitted_position].timeline().rank;
  cause.text =
      fmt::format("rank {} submitted it {:.2f} ms later than rank {}: there it was in ", cause.rank,
                  Ms(all.submitted_ns - transfer.begin_ns), ranks_[position].timeline().rank);
  cause.text +=
      Queue(all.submitted_position, *all.submitted_span, {there.ready_ns, there.begin_ns}).text;
  return cause;
}

// What took longer on the late rank than on this one, if that explains most of it; else what ended
// just before.
std::string CauseFinder::WhyLate(size_t position, const Span& transfer, size_t late_position,
                                 const Span& late, int64_t late_ns) const {
  const TimelineIndex& rank = ranks_[late_position];
  int64_t sum_ns = 0, largest_ns = 0;
  const Span* largest = nullptr;
  for (uint32_t task = 0; task < transfer.task; ++task) {
    const Span* there = rank.Find(task, transfer.step);
    const Span* here = ranks_[position].Find(task, transfer.step);
    if (there == nullptr || here == nullptr || rank.IsTransfer(*there) ||
        there->end_ns > late.begin_ns) {
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
    return fmt::format("its {} took {:.2f} ms longer", name, Ms(largest_ns));
  }
  if (sum_ns > late_ns / 2) {
    return fmt::format("its tasks of this step took {:.2f} ms longer, most of all {} ({:.2f} ms)",
                       Ms(sum_ns), name, Ms(largest_ns));
  }
  // Behind bookkeeping stands the work.
  const Span* reason = rank.LastDependency(late);
  while (reason != nullptr && rank.TaskOf(*reason).kind == TaskKind::kHook) {
    reason = rank.LastDependency(*reason);
  }
  if (reason == nullptr) return "the trace does not say why";
  return fmt::format("its {} ended late", rank.TaskOf(*reason).name);
}

WaitCause CauseFinder::Queue(size_t position, const Span& transfer, const Interval& queued) const {
  const Span* blocker = Blocker(position, queued, &transfer);
  const double ms = Ms(queued.end - queued.begin);
  WaitCause cause;
  if (blocker == nullptr) {
    cause.kind = CauseKind::kHeld;
    cause.text = fmt::format("the queue for {:.2f} ms, though nothing else was under way", ms);
  } else {
    cause.kind = CauseKind::kQueue;
    cause.text = fmt::format("the queue for {:.2f} ms, behind {}", ms,
                             ranks_[position].TaskOf(*blocker).name);
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

}  // namespace engine::trace
