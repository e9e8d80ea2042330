// What a trace says about a run: docs/trace.md defines every figure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/trace/inversions.h"
#include "tools/trace/steady_steps.h"
#include "tools/trace/step_figures.h"
#include "tools/trace/trace_format.h"
#include "tools/trace/wait_cause.h"

namespace engine::trace {

struct SummaryOptions {
  double bandwidth = 0;  // of the bottleneck link, bytes per second each way; 0: as measured
  std::optional<StepRange> steps;
  size_t longest_waits = 10;
};

struct LongWait {
  uint64_t step = 0;  // in which it lies
  int32_t rank = 0;
  int64_t wait_ns = 0;
  std::string task;      // the compute task that ended it, or ""
  std::string forward;   // the forward task that this let run, else the first that needs it; or ""
  std::string transfer;  // what `task` waited for, or ""
  CauseKind cause = CauseKind::kUnknown;
  int32_t cause_rank = -1;
  int64_t cause_ns = 0;
  std::string cause_text;
};

struct TraceSummary {
  std::map<std::string, std::string> metadata;
  int32_t world_size = 1;
  std::vector<uint64_t> steps;  // those that the figures are of
  std::string left_out;         // others and why
  uint64_t dropped = 0;         // spans, all ranks
  int64_t clock_error_ns = 0;   // the largest

  double step_p10_ns = 0, step_p90_ns = 0;
  StepFigures all;  // over the steps of all ranks
  std::vector<std::pair<int32_t, StepFigures>> ranks;

  double link_bytes = 0;  // per step and rank, each way
  double goodput = 0;     // bytes per second; 0: nothing was moved
  bool goodput_given = false;
  double compute_ns = 0;  // F + B of the slowest rank
  double ideal_ns = 0;    // C: link_bytes / goodput
  double efficiency = 0;  // max(F + B, C) / T

  // Of all ranks, and how many each has. Where rank 0 decides the order, another rank has those
  // that come from its being ahead or behind.
  Inversions submission, first_byte;
  std::vector<uint64_t> submission_by_rank, first_byte_by_rank;  // as in `ranks`
  bool first_byte_known = false;

  double waits_ns = 0;  // in these steps, all ranks
  double waits_by_cause_ns[5] = {};
  std::vector<LongWait> longest_waits;  // longest first
};

// kBadData when no step is whole, kInvalidArgument when the wanted steps are not there. The ranks
// of `trace` have been checked, and there is at least one.
Result<TraceSummary> SummarizeTrace(Trace trace, const SummaryOptions& options);

// A table of lines of at most 100 columns.
std::string SummaryText(const TraceSummary& summary, const std::string& title);
// One JSON object, with a newline.
std::string SummaryJson(const TraceSummary& summary);

}  // namespace engine::trace
