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

// Runs `program` once per host and prints what rank 0 printed, or what the rank did that failed: its
// exit code.
int RunOnHosts(const std::string& program, const std::vector<std::string>& arguments, int hosts,
               const LinkFlags& link, const command::Environment& environment, int64_t timeout_ms);

std::vector<std::string> CommandLineOfThisProcess();
bench::Machine ThisMachine();
Result<std::unique_ptr<bench::ScratchFolder>> MakeScratch();

// Add one subcommand of `engine bench` each.
void AddBenchTrain(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchCollectives(CLI::App& bench, const command::Environment& environment, int* exit_code);
void AddBenchHosts(CLI::App& bench, const command::Environment& environment, int* exit_code);

}  // namespace engine
