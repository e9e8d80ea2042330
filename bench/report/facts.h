// Figures of a comparison in words, for every form that shows them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/training/result.h"

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

}  // namespace engine::bench
