// What the subcommands of `engine bench` share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/cli/command.h"

namespace engine {

// Flags of one side.
struct SideFlags {
  std::vector<std::string> plugins, overrides, folders;
  bool any() const { return !plugins.empty() || !overrides.empty() || !folders.empty(); }
};

// How ranks are connected.
struct LinkFlags {
  std::string rate, congestion = "cubic";
};

// Adds the flags of side "a" or "b"; `with_plugins`: also the one that lists its plugins.
void AddSideFlags(CLI::App* app, const std::string& name, SideFlags* flags, bool with_plugins);
void AddLinkFlags(CLI::App* app, LinkFlags* flags);

std::vector<std::string> CommandLineOfThisProcess();
bench::Machine ThisMachine();
Result<std::unique_ptr<bench::ScratchFolder>> MakeScratch();
// This executable, for ranks; `folder` is that of their files.
Result<bench::Program> MakeProgram(const command::Environment& environment,
                                   const std::string& folder);

// Add one subcommand of `engine bench` each.
void AddBenchTrain(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchCollectives(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchHosts(CLI::App& bench, const command::Environment& environment, int* exit_code);

}  // namespace engine
