#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "bench/cli/flags.h"

namespace engine {
namespace {

struct BenchHostsFlags {
  bench::LinkOptions link;
  double timeout_s = 600;
  std::vector<std::string> command;
};

}  // namespace

void AddBenchHosts(CLI::App& bench, const command::Environment& environment, int* exit_code) {
  auto flags = std::make_shared<BenchHostsFlags>();
  CLI::App* hosts = bench.add_subcommand(
      "hosts", "Run any program as ranks on emulated hosts, numbered by the variables of torchrun");
  hosts->add_option("command", flags->command, "The program and its arguments, after --")
      ->required()
      ->type_name("PROGRAM ...");
  hosts->option_defaults()->always_capture_default();
  AddLinkFlags(hosts, &flags->link);
  hosts->get_option("--link")->required();
  hosts->add_option("-n,--ranks", flags->link.hosts, "Number of hosts")
      ->check(CLI::Range(1, bench::kMaxLinkedHosts));
  hosts->add_option("--ranks-per-host", flags->link.ranks_per_host, "Ranks on each of them")
      ->check(CLI::Range(1, 64));
  hosts->add_option("--timeout", flags->timeout_s, "Seconds until it is ended")
      ->check(CLI::Range(1.0, 86400.0));
  hosts->footer(
      "Prints what rank 0 prints, then what the rank did that failed, and returns its exit code.");
  hosts->callback([flags, &environment, exit_code] {
    *exit_code = RunOnHosts(flags->command, flags->link, environment, flags->timeout_s);
  });
}

}  // namespace engine
