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
namespace {

Result<std::string> BinaryOfThisProcess() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return path.string();
  return Status::Error(StatusCode::kInternal, "/proc/self/exe: %s", error.message().c_str());
}

}  // namespace

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

Result<bench::Program> MakeProgram(const command::Environment& environment,
                                   const std::string& folder) {
  bench::Program program{.environment = environment.variables, .folder = folder};
  ENGINE_ASSIGN_OR_RETURN(program.binary, BinaryOfThisProcess());
  return program;
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

void AddSideFlags(CLI::App* app, const std::string& name, SideFlags* flags, bool with_plugins) {
  const std::string title = name == "a" ? "A" : "B";
  if (with_plugins) {
    app->add_option("--" + name, flags->plugins,
                    "Plugins of " + title + ", each for the role it fills")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("NAME,...");
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
      ->capture_default_str()
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
