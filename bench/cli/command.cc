#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "app/command/version.h"
#include "bench/cli/flags.h"

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

int RunOnHosts(const std::string& program, const std::vector<std::string>& arguments, int hosts,
               const LinkFlags& link, const command::Environment& environment, int64_t timeout_ms) {
  const launch::StopSignals end_by_signal;  // when nothing is left behind
  const auto scratch = MakeScratch();
  if (!scratch.ok()) return command::ReportError(scratch.status());
  const auto outcome = bench::RunOnLinkedHosts(
      arguments, hosts, link.rate, link.congestion,
      {.binary = program, .environment = environment.variables, .folder = (*scratch)->path()},
      timeout_ms);
  if (!outcome.ok()) return command::ReportError(outcome.status());
  std::fputs(outcome->output.c_str(), outcome->exit_code == 0 ? stdout : stderr);
  return outcome->exit_code;
}

void AddSideFlags(CLI::App* app, const std::string& name, SideFlags* flags, bool with_plugins) {
  const std::string title = name == "a" ? "A" : "B";
  if (with_plugins) {
    command::AddPlugins(app, "--" + name, &flags->plugins,
                        "Plugins of " + title + ", each for the role it fills");
  }
  command::AddOverrides(app, "--" + name + "-set", &flags->overrides,
                        "Override a key for " + title + " alone; can be repeated");
  command::AddPluginFolders(app, "--" + name + "-plugin-path", &flags->folders,
                            "Folder to search for plugins of " + title + " first");
}

void AddLinkFlags(CLI::App* app, LinkFlags* flags) {
  app->add_option("--link", flags->rate,
                  "Ranks on hosts of their own (network namespaces), each behind a link of this "
                  "rate; needs root")
      ->type_name("RATE");
  app->add_option("--congestion", flags->congestion, "TCP congestion control on the links")
      ->type_name("NAME");
}

void AddBenchCommand(CLI::App& app, const command::Environment& environment, int* exit_code) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure: does B train faster than A, and by how much?");
  bench->require_subcommand(1);
  AddBenchTrain(*bench, environment, exit_code);
  AddBenchCollectives(*bench, environment, exit_code);
  AddBenchHosts(*bench, environment, exit_code);
}

}  // namespace engine
