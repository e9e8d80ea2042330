// Figures of a comparison in words, for every form that shows them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/training/result.h"
#include "tools/report/page_parts.h"

namespace engine::bench {

using Fact = std::pair<std::string, std::string>;  // name, value

// "12.3 ms", "845 us": three digits that count.
std::string Milliseconds(double seconds);
std::string Percent(double share);

// The sides that ran, A first.
std::vector<SideId> SidesOf(const TrainResult& result);

// What follows from the compute time and the link, as far as they are known: F + B, C, r, bounds,
// and per side the exposed communication and the schedule efficiency.
std::vector<Fact> EfficiencyFacts(const TrainResult& result);

// Seconds and steps to the target of the losses, of each side; nothing without one.
std::vector<Fact> TargetFacts(const TrainResult& result);

// What was run: ranks, steps, link, losses.
std::vector<Fact> ConditionFacts(const TrainResult& result);

std::vector<Fact> MachineFacts(const Machine& machine);

// The head first. A page shows it by report::Table.
struct TextTable {
  std::string title;
  std::vector<report::Cells> rows;
};
// In columns, below an empty line.
std::string TextOf(const TextTable& table);

// Times of steps, in ms: a head, and what stands below it.
inline const report::Cells kStepHead = {"", "median", "p10", "p90", "mean", "steps"};
report::Cells StepCells(const std::string& name, const std::vector<double>& seconds);
// Of all sides that ran.
TextTable StepTable(const TrainResult& result);

// A page that needs nothing but itself: the conclusion, `body`, the machine and its command line.
// `mood`: a class of the style sheet, which colours the conclusion.
std::string Page(const std::string& title, const char* mood, const std::string& headline,
                 const std::string& words, const std::string& body, const Machine& machine);

}  // namespace engine::bench
