// What the subcommands of `engine bench` share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/cli/command.h"

namespace engine {

// Adds the flags of side "a" or "b"; `with_plugins`: also the one that lists its plugins.
void AddSideFlags(CLI::App* app, const std::string& name, bench::Side* side, bool with_plugins);
// How ranks are connected.
void AddLinkFlags(CLI::App* app, bench::LinkOptions* link);

// Runs a program once per host of `link`, numbered by torchrun's variables, and prints what rank 0
// printed, or what the rank did that failed: its exit code. Nothing is left running.
int RunOnHosts(const std::vector<std::string>& command, const bench::LinkOptions& link,
               const command::Environment& environment, double timeout_s);

std::vector<std::string> CommandLineOfThisProcess();
bench::Machine ThisMachine();
Result<std::unique_ptr<bench::ScratchFolder>> MakeScratch();

// Add one subcommand of `engine bench` each.
void AddBenchTrain(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchCollectives(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchHosts(CLI::App& bench, const command::Environment& environment, int* exit_code);

}  // namespace engine
