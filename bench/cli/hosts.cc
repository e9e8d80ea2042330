#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "app/launch/launch.h"
#include "bench/cli/flags.h"

namespace engine {
namespace {

struct BenchHostsFlags {
  LinkFlags link;
  int hosts = 2;
  double timeout_s = 600;
  std::vector<std::string> command;
};

// Any program, once per host: what a comparison with other software needs.
int BenchHosts(const BenchHostsFlags& flags, const command::Environment& environment) {
  const auto scratch = MakeScratch();
  if (!scratch.ok()) return command::ReportError(scratch.status());
  const bench::Program program{.binary = flags.command[0],
                               .environment = environment.variables,
                               .folder = (*scratch)->path()};
  const std::vector<std::string> arguments(flags.command.begin() + 1, flags.command.end());
  const auto outcome =
      bench::RunOnLinkedHosts(arguments, flags.hosts, flags.link.rate, flags.link.congestion,
                              program, static_cast<int64_t>(flags.timeout_s * 1000));
  if (!outcome.ok()) return command::ReportError(outcome.status());
  std::fputs(outcome->output.c_str(), outcome->exit_code == 0 ? stdout : stderr);
  return outcome->exit_code;
}

}  // namespace

void AddBenchHosts(CLI::App& bench, const command::Environment& environment, int* exit_code) {
  auto flags = std::make_shared<BenchHostsFlags>();
  CLI::App* hosts = bench.add_subcommand(
      "hosts", "Run any program once per emulated host, numbered by the variables of torchrun");
  AddLinkFlags(hosts, &flags->link);
  hosts->get_option("--link")->required();
  hosts->add_option("-n,--ranks", flags->hosts, "Number of hosts")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  hosts->add_option("--timeout", flags->timeout_s, "Seconds until it is ended")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 86400.0));
  hosts->add_option("command", flags->command, "The program and its arguments, after --")
      ->required()
      ->type_name("PROGRAM ...");
  hosts->footer(
      "Prints what rank 0 printed, or what the rank did that failed, and returns its exit code.");
  hosts->callback(
      [flags, &environment, exit_code] { *exit_code = BenchHosts(*flags, environment); });
}

}  // namespace engine
