#include "tools/simulate/command.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/log.h"
#include "tools/simulate/quantity.h"
#include "tools/simulate/study.h"
#include "tools/trace/trace_format.h"

namespace engine::simulate {
namespace {

struct SimulateFlags {
  command::ConfigFlags config;
  std::vector<std::string> schedulers;
  std::string ranks = "2..4096";
  std::string bandwidth, inner_bandwidth = "100gbit";
  std::string latency = "50us", inner_latency = "10us", message_cost = "0us",
              ticket_latency = "100us";
  std::string pattern = "exchange";
  StudyOptions options{.network = {.unfairness = 1}};  // the numbers among the flags
  bool json = false;
};

Status ReadQuantities(const SimulateFlags& flags, StudyOptions* options) {
  NetworkModel& network = options->network;
  network.pattern = flags.pattern == "ring" ? Pattern::kRing : Pattern::kExchange;
  ENGINE_ASSIGN_OR_RETURN(network.bits_per_second, ParseBitRate("--bandwidth", flags.bandwidth));
  ENGINE_ASSIGN_OR_RETURN(network.latency_ns, ParseTime("--latency", flags.latency));
  ENGINE_ASSIGN_OR_RETURN(network.message_ns, ParseTime("--message-cost", flags.message_cost));
  ENGINE_ASSIGN_OR_RETURN(network.ticket_ns, ParseTime("--ticket-latency", flags.ticket_latency));
  ENGINE_ASSIGN_OR_RETURN(network.inner_bits_per_second,
                          ParseBitRate("--inner-bandwidth", flags.inner_bandwidth));
  ENGINE_ASSIGN_OR_RETURN(network.inner_latency_ns,
                          ParseTime("--inner-latency", flags.inner_latency));
  ENGINE_ASSIGN_OR_RETURN(options->ranks, ParseRanks("--ranks", flags.ranks));
  for (const int32_t ranks : options->ranks) {
    if (ranks <= network.ranks_per_host || ranks % network.ranks_per_host == 0) continue;
    return Status::Error(StatusCode::kInvalidArgument,
                         "--ranks: %d ranks are no whole number of hosts of %d (--ranks-per-host)",
                         ranks, network.ranks_per_host);
  }
  return {};
}

// A trace is JSON, and no configuration begins like that.
bool LooksLikeTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char first = 0;
  while (file.get(first) && std::isspace(static_cast<unsigned char>(first)) != 0) continue;
  return file && first == '{';
}

// The configuration of a traced run, with `overrides` and `plugins` on top.
Result<config::Config> ConfigOfTrace(const trace::Trace& trace, const command::ConfigFlags& flags,
                                     const command::Environment& environment) {
  const auto text = trace.metadata.find("config");
  if (text == trace.metadata.end()) {
    return Status::Error(StatusCode::kBadData,
                         "the trace %s holds no configuration, so its steps cannot be planned anew",
                         flags.file.c_str());
  }
  return command::LoadConfig({.text = text->second,
                              .origin = flags.file,
                              .overrides = flags.overrides,
                              .plugins = flags.plugins},
                             flags.plugin, environment);
}

Result<TracedRun> ReadTracedRun(const command::ConfigFlags& flags,
                                const command::Environment& environment) {
  ENGINE_ASSIGN_OR_RETURN(trace::Trace trace, trace::ReadTrace(flags.file));
  const command::ConfigFlags as_it_was{.file = flags.file, .plugin = flags.plugin};
  ENGINE_ASSIGN_OR_RETURN(config::Config config, ConfigOfTrace(trace, as_it_was, environment));
  return TracedRun{std::move(trace), std::move(config)};
}

// One for each scheduler to compare.
Result<std::vector<config::Config>> LoadConfigs(const SimulateFlags& flags,
                                                const std::optional<TracedRun>& traced,
                                                const command::Environment& environment) {
  std::vector<command::ConfigFlags> wanted(std::max<size_t>(flags.schedulers.size(), 1),
                                           flags.config);
  for (size_t i = 0; i < flags.schedulers.size(); ++i) {
    wanted[i].plugins.push_back(flags.schedulers[i]);
  }
  std::vector<config::Config> configs;
  for (const command::ConfigFlags& one : wanted) {
    auto config = traced ? ConfigOfTrace(traced->trace, one, environment)
                         : command::LoadConfig(one, environment);
    if (!config.ok()) return config.status();
    configs.push_back(std::move(*config));
  }
  return configs;
}

Status Predict(const SimulateFlags& flags, const command::Environment& environment) {
  StudyOptions options = flags.options;
  ENGINE_RETURN_IF_ERROR(ReadQuantities(flags, &options));
  std::optional<TracedRun> traced;
  if (LooksLikeTrace(flags.config.file)) {
    ENGINE_ASSIGN_OR_RETURN(traced, ReadTracedRun(flags.config, environment));
  }
  ENGINE_ASSIGN_OR_RETURN(const std::vector<config::Config> configs,
                          LoadConfigs(flags, traced, environment));
  ENGINE_ASSIGN_OR_RETURN(const std::vector<SchedulerStudy> studies,
                          RunStudy(configs, traced, options));
  const std::string text =
      flags.json ? FormatStudyJson(studies, options) : FormatStudy(studies, options);
  std::fputs(launch::Printable(text).c_str(), stdout);
  return {};
}

void AddNetworkFlags(CLI::App* app, SimulateFlags* flags) {
  NetworkModel& network = flags->options.network;
  app->add_option("--bandwidth", flags->bandwidth, "Rate of each host's link, each way: 375mbit")
      ->required()
      ->type_name("RATE");
  app->add_option("--goodput", network.goodput, "Share of the rate that is payload")
      ->check(CLI::Range(0.01, 1.0));
  app->add_option("--unfairness", network.unfairness,
                  "How unequally transfers share a link: 0: not at all; 1: up to 4 to 1")
      ->check(CLI::Range(0.0, 100.0));
  app->add_option("--latency", flags->latency, "Of a message between two ranks, wake-up included")
      ->type_name("TIME");
  app->add_option(
         "--ranks-per-host,--gpus-per-node", network.ranks_per_host,
         "Ranks that share the link of a host; with several, schedulers are also simulated "
         "with the communicator hier")
      ->check(CLI::Range(1, 4096));
  app->add_option("--inner-bandwidth", flags->inner_bandwidth,
                  "Rate from each rank to the others of its host, all payload")
      ->type_name("RATE");
  app->add_option("--inner-latency", flags->inner_latency, "Of a message inside of a host")
      ->type_name("TIME");
  app->add_option("--message-cost", flags->message_cost, "Time that each message costs its host")
      ->type_name("TIME");
  app->add_option("--copy-rate", network.copy_bytes_per_second,
                  "Bytes a host sends and adds up in a second: 2gb; 0: no limit")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--burst", network.burst_bytes, "Bucket of a link that tc-tbf limits: 256kb")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--ticket-latency", flags->ticket_latency,
                  "Until the others hear which transfer rank 0 has started")
      ->type_name("TIME");
  app->add_option("--in-flight", network.max_in_flight,
                  "Transfers that run at once (tcp.io_threads); 0: all")
      ->check(CLI::Range(0, 4096));
  app->add_option("--servers", network.servers,
                  "Parameter servers of their own, each with such a link; 0: those inside of the "
                  "ranks, if the configuration has them update")
      ->check(CLI::Range(0, 4096));
  app->add_option(
         "--pattern", flags->pattern,
         "exchange: every rank with every other, as tcp here; ring. Of hier: on both levels")
      ->check(CLI::IsMember({"exchange", "ring"}));
}

}  // namespace

void AddSimulateCommand(CLI::App& app, const command::Environment& environment, int* exit_code) {
  const auto flags = std::make_shared<SimulateFlags>();
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Predict the time of a step on other networks and numbers of ranks");
  simulate
      ->add_option("file", flags->config.file,
                   "Configuration, whose compute is measured here with one rank; or a trace "
                   "(engine run --trace), whose times are taken")
      ->required()
      ->type_name("CONFIG|TRACE");
  command::AddPlugins(simulate, "--plugins", &flags->config.plugins,
                      "Plugins, each for the role it fills: --plugins priority_sched");
  command::AddOverrides(simulate, "--set", &flags->config.overrides,
                        "Override a key: --set priority_sched.slice_bytes=65536; can be repeated");
  command::AddPluginFolders(simulate, "--plugin-path", &flags->config.plugin.folders);
  command::AddPlugins(simulate, "--schedulers", &flags->schedulers,
                      "Compare these: --schedulers fifo_sched,priority_sched (default: the "
                      "configured one)");
  simulate->option_defaults()->always_capture_default();
  simulate->add_option("--ranks", flags->ranks, "Numbers of ranks: 2,4,8, or 2..4096 in doubles");
  AddNetworkFlags(simulate, flags.get());
  simulate->add_option("--steps", flags->options.steps, "Steps to simulate for each prediction")
      ->check(CLI::Range(5, 100000));
  simulate
      ->add_option("--measured-steps", flags->options.measured_steps,
                   "Steps to run for the times of the compute")
      ->check(CLI::Range(1, 1000));
  simulate->add_flag("--json", flags->json, "For programs");
  simulate->callback([flags, &environment, exit_code] {
    *exit_code = command::ReportError(Predict(*flags, environment));
  });
}

}  // namespace engine::simulate
