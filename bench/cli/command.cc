#include "bench/cli/command.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "app/command/version.h"
#include "bench/cli/flags.h"
#include "bench/link/linked_ranks.h"

namespace engine {

std::vector<std::string> CommandLineOfThisProcess() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

bench::Machine ThisMachine() {
  return bench::DescribeMachine(command::kVersionText,
                                bench::ShellWords(CommandLineOfThisProcess()));
}

Result<std::unique_ptr<bench::ScratchFolder>> MakeScratch() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    return Status::Error(StatusCode::kStorage, "no folder for temporary files: %s",
                         error.message().c_str());
  }
  return bench::ScratchFolder::Create(parent.string());
}

namespace {

Result<int> RunAndPrint(const std::vector<std::string>& command, const bench::LinkOptions& link,
                        const command::Environment& environment, double timeout_s,
                        const launch::StopSignals& signals) {
  ENGINE_ASSIGN_OR_RETURN(const auto scratch, MakeScratch());
  ENGINE_ASSIGN_OR_RETURN(const auto hosts, bench::LinkedHosts::Create(link));
  std::vector<bench::Command> ranks = bench::RanksOnHosts(
      {.arguments = command, .environment = environment.variables, .output = ""}, *hosts,
      link.hosts * link.ranks_per_host, scratch->path() + "/output.", link.ranks_per_host);
  ranks[0].output.clear();  // it says at once how far it is
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  ENGINE_ASSIGN_OR_RETURN(const auto ends, bench::RunTogether(ranks, timeout, &signals));
  const size_t failed = bench::FirstFailure(ends) % ends.size();  // of none the first
  if (failed != 0) std::cerr << std::ifstream(ranks[failed].output).rdbuf();
  return ends[failed].exit_code;
}

}  // namespace

int RunOnHosts(const std::vector<std::string>& command, const bench::LinkOptions& link,
               const command::Environment& environment, double timeout_s) {
  const launch::StopSignals signals;  // end this process when nothing is left behind
  const auto exit_code = RunAndPrint(command, link, environment, timeout_s, signals);
  return exit_code.ok() ? *exit_code : command::ReportError(exit_code.status());
}

void AddSideFlags(CLI::App* app, const std::string& name, bench::Side* side, bool with_plugins) {
  const std::string title = name == "a" ? "A" : "B";
  if (with_plugins) {
    command::AddPlugins(app, "--" + name, &side->plugins,
                        "Plugins of " + title + ", each for the role it fills");
  }
  command::AddOverrides(app, "--" + name + "-set", &side->overrides,
                        "Override a key for " + title + " alone; can be repeated");
  command::AddPluginFolders(app, "--" + name + "-plugin-path", &side->plugin_folders,
                            "Folder to search for plugins of " + title + " first");
}

void AddLinkFlags(CLI::App* app, bench::LinkOptions* link) {
  link->rate.clear();
  app->add_option("--link", link->rate,
                  "Ranks on hosts of their own (network namespaces), each behind a link of this "
                  "rate; needs root")
      ->type_name("RATE");
  app->add_option("--congestion", link->congestion, "TCP congestion control on the links")
      ->type_name("NAME");
}

void AddBenchCommand(CLI::App& app, const command::Environment& environment, int* exit_code) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure: does B train faster than A, and by how much?");
  bench->require_subcommand(1);
  AddBenchTrain(*bench, environment, exit_code);
  AddBenchCollectives(*bench, environment, exit_code);
  AddBenchCluster(*bench, environment, exit_code);
  AddBenchHosts(*bench, environment, exit_code);
}

}  // namespace engine
