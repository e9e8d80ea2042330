#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/commands.h"
#include "app/cli/crash_handler.h"
#include "app/command/version.h"
#include "app/launch/limits.h"
#include "app/launch/log.h"
#include "app/plugins/words.h"
#include "bench/cli/command.h"
#include "tools/report/command.h"
#include "tools/simulate/command.h"
#include "tools/trace/command.h"

extern char** environ;

namespace engine::cli {
namespace {

command::Environment ReadEnvironment() {
  command::Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      environment.variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length > 0) {
    environment.binary.assign(path, static_cast<size_t>(length));
    environment.binary_folder = environment.binary.substr(0, environment.binary.rfind('/'));
  }
  return environment;
}

void AddConfigFlags(CLI::App* app, command::ConfigFlags* flags) {
  app->add_option("config", flags->file, "Configuration file (default: the built-in one)")
      ->type_name("FILE");
  command::AddPlugins(app, "--plugins", &flags->plugins,
                      "Plugins, each for the role it fills: --plugins tcp,fifo_sched");
  command::AddOverrides(app, "--set", &flags->overrides,
                        "Override a key: --set train.steps=100; can be repeated");
  command::AddPluginFolders(app, "--plugin-path", &flags->plugin.folders);
}

void AddCheckpointFlags(CLI::App* app, CheckpointFlags* flags) {
  app->add_option("checkpoint", flags->file, "Checkpoint file")->required()->type_name("FILE");
  command::AddOverrides(app, "--set", &flags->overrides,
                        "Override a key of the configuration in the checkpoint");
  command::AddPluginFolders(app, "--plugin-path", &flags->plugin.folders);
}

class CommandLine {
 public:
  explicit CommandLine(const command::Environment& environment) : environment_(environment) {
    app_.set_version_flag("--version", command::kVersionText);
    app_.require_subcommand(1);
    app_.footer(
        "Exit codes: 0; 2 usage; 65 bad data; 66 missing input; 70 a bug; 78 configuration;\n"
        "79 plugin, or unsafe; 200 peer lost; 201 rendezvous; 202 timeout or stall;\n"
        "203 storage or a limit; 128+n signal n.");
    AddRun();
    AddServe();
    AddPlugins();
    AddConfig();
    AddSample();
    AddEval();
    AddPredict();
    AddExport();
    report::AddReportCommand(app_, &code_);
    trace::AddTraceCommand(app_, &code_);
    AddBenchCommand(app_, environment_, &code_);
    simulate::AddSimulateCommand(app_, environment_, &code_);
    AddConform();
  }

  int Run(int argc, char** argv) {
    const Status known = CheckSubcommands(argc, argv);
    if (!known.ok()) return command::ReportError(known);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app_.exit(error) == 0 ? 0 : 2;
    }
    return code_;
  }

 private:
  // A word where a subcommand must stand; CLI11 would only say that one is required.
  Status CheckSubcommands(int argc, char** argv) {
    CLI::App* app = &app_;
    for (int i = 1; i < argc && argv[i][0] != '-' && app->get_require_subcommand_min() > 0; ++i) {
      CLI::App* next = nullptr;
      std::vector<std::string> names;
      for (CLI::App* other : app->get_subcommands([](CLI::App*) { return true; })) {
        names.push_back(other->get_name());
        if (names.back() == argv[i]) next = other;
      }
      if (next == nullptr) {
        return Status::Error(StatusCode::kInvalidArgument,
                             "unknown subcommand '%s' of '%s'%s; --help explains: %s", argv[i],
                             app->get_name().c_str(), plugins::DidYouMean(argv[i], names).c_str(),
                             plugins::Join(names).c_str());
      }
      app = next;
    }
    return {};
  }

  void AddRun() {
    CLI::App* run = app_.add_subcommand("run", "Train a model on one or several ranks");
    AddConfigFlags(run, &run_.config);
    run->add_option("-n,--ranks", run_.launch.world_size, "Number of ranks on this machine")
        ->check(CLI::Range(1, 4096));
    run->add_flag("--threads", run_.launch.threads, "Ranks are threads of one process");
    command::AddLauncher(run, &run_.launch);
    AddServerFlags(run);
    run->add_option("--trace", run_.trace,
                    "Write what all ranks did when, for Perfetto (sets output.trace)")
        ->type_name("FILE");
    run->add_option(
           "--resume", run_.resume,
           "Go on from a checkpoint; without a configuration file, with its own; auto: from "
           "the newest that this configuration has written, if there is one")
        ->type_name("FILE|auto");
    run->add_flag("--dry-run", run_.dry_run,
                  "Show layers, memory, schedule and shares of data, and write nothing");
    run->add_flag("--force", run_.force, "Replace the checkpoint of another run");
    run->add_option("--bind", run_.bind,
                    "Bind each rank to its share of this host's cores, or to a NUMA node")
        ->check(CLI::IsMember({"none", "core", "numa"}));
    run->add_option("--progress", run_.progress,
                    "Steps as a live line, as plain lines, or not at all; auto: live on a terminal")
        ->check(CLI::IsMember({"auto", "plain", "live", "none"}));
    run->add_flag("-q,--quiet", run_.quiet, "No progress, only results and problems");
    run->add_flag("-v,--verbose", run_.verbose, "Also what plugins say for debugging");
    run->callback([this] {
      if (!run_.trace.empty()) run_.config.overrides.push_back("output.trace=" + run_.trace);
      code_ = RunCommand(run_, environment_);
    });
  }

  void AddServerFlags(CLI::App* run) {
    run->add_option("--servers", run_.launch.servers,
                    "Members beside the ranks that keep and update the parameters")
        ->check(CLI::Range(0, 256));
    run->add_option("--serve-at", run_.launch.serve_at,
                    "Start no servers: wait here for `engine serve` to join, as often as --servers "
                    "says")
        ->type_name("HOST:PORT");
    command::AddAccessFlags(run, &run_.launch.key_file, &run_.launch.insecure);
    run->add_option(
           "--restarts", run_.launch.restarts,
           "How often a lost rank is replaced: started again with -n, else by another process "
           "that joins; the run goes on from the step at hand")
        ->check(CLI::Range(0, 1000000));
    run->add_option("--min-ranks", run_.launch.min_ranks,
                    "With how many ranks the run goes on when lost ones are not replaced")
        ->check(CLI::Range(0, 1000000));
  }

  void AddServe() {
    CLI::App* serve = app_.add_subcommand("serve", "Join a run as one of its servers");
    serve->add_option("address", serve_.address, "Where the run waits for its servers")
        ->required()
        ->type_name("HOST:PORT");
    serve->add_option("--index", serve_.index, "Which server this is, from 0 on")
        ->required()
        ->check(CLI::Range(0, 255));
    command::AddAccessFlags(serve, &serve_.key_file, &serve_.insecure);
    serve->add_option("--wait", serve_.wait_seconds, "Seconds to wait for the run")
        ->capture_default_str()
        ->check(CLI::Range(1, 86400));
    command::AddPluginFolders(serve, "--plugin-path", &serve_.plugin.folders);
    serve->add_flag("-q,--quiet", serve_.quiet, "Only problems");
    serve->add_flag("-v,--verbose", serve_.verbose, "Also what plugins say for debugging");
    serve->callback([this] { code_ = ServeCommand(serve_, environment_); });
  }

  void AddPlugins() {
    CLI::App* plugins =
        app_.add_subcommand("plugins", "List plugins, describe or check one, or begin a new one");
    plugins->add_option("name", plugin_name_, "Name of a plugin, or path of its file")
        ->type_name("NAME");
    command::AddPluginFolders(plugins, "--plugin-path", &plugins_.folders);
    plugins->add_option("--check", plugin_file_, "Say why this library would be refused, if so")
        ->type_name("FILE");
    CLI::App* made = plugins->add_subcommand("new", "Write a project that makes a plugin");
    made->add_option("name", plugin_name_, "Its name, and that of the folder to make")
        ->required()
        ->type_name("NAME");
    made->add_option("--kind", plugin_kind_,
                     "communicator, scheduler, optimizer, ops, hook, dataset or model")
        ->required()
        ->type_name("KIND");
    plugins->callback([this, made] {
      code_ = made->parsed()         ? NewPluginCommand(plugin_name_, plugin_kind_)
              : plugin_file_.empty() ? PluginsCommand(plugins_, plugin_name_, environment_)
                                     : CheckPluginCommand(plugin_file_);
    });
  }

  void AddConfig() {
    CLI::App* config = app_.add_subcommand("config", "Check or print a configuration");
    config->require_subcommand(1);
    CLI::App* check = config->add_subcommand("check", "Find what a run would refuse");
    AddConfigFlags(check, &config_);
    check->callback([this] { code_ = ConfigCheckCommand(config_, environment_); });
    CLI::App* print = config->add_subcommand("print", "Print every value and where it comes from");
    AddConfigFlags(print, &config_);
    print->callback([this] { code_ = ConfigPrintCommand(config_, environment_); });
  }

  // A program of its own, which brings a test framework.
  void AddConform() {
    CLI::App* conform = app_.add_subcommand("conform", "Judge a plugin by the contract of the SDK");
    conform->prefix_command()->set_help_flag();
    conform->callback([this, conform] {
      const std::string program = environment_.binary_folder + "/engine-conform";
      std::vector<std::string> words = conform->remaining();
      std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(program.c_str(), arguments.data());
      code_ = command::ReportError(
          Status::Error(StatusCode::kMissingInput,
                        "cannot start %s: install it with the SDK (cmake --install, component sdk)",
                        program.c_str()));
    });
  }

  void AddSample() {
    CLI::App* sample = app_.add_subcommand("sample", "Continue a text with a trained model");
    AddCheckpointFlags(sample, &checkpoint_);
    sample->option_defaults()->always_capture_default();
    sample
        ->add_option("--prompt", checkpoint_.prompt,
                     "Text to continue; of a model of tokens, their numbers")
        ->type_name("TEXT");
    sample->add_option("--bytes,--tokens", checkpoint_.count, "So many bytes or tokens to generate")
        ->check(CLI::Range(1, 1000000));
    sample->add_option("--temperature", checkpoint_.temperature, "0: always the likeliest")
        ->check(CLI::Range(0.0, 100.0));
    sample->add_option("--top-k", checkpoint_.top_k, "Choose among so many; 0: all")
        ->check(CLI::Range(0, 1 << 30));
    sample->add_option("--seed", checkpoint_.seed, "The same seed gives the same text");
    sample->callback([this] { code_ = SampleCommand(checkpoint_, environment_); });
  }

  void AddEval() {
    CLI::App* eval = app_.add_subcommand("eval", "Evaluate a trained model, on its held-out data");
    AddCheckpointFlags(eval, &checkpoint_);
    AddDataFlags(eval, &checkpoint_, {"held_out", "train"});
    eval->add_option("-n,--ranks", checkpoint_.launch.world_size, "Number of ranks on this machine")
        ->check(CLI::Range(1, 4096));
    command::AddLauncher(eval, &checkpoint_.launch);
    CLI::Option* const json =
        eval->add_flag("--json", checkpoint_.json, "All figures as one JSON object");
    eval->add_option("--mistakes", checkpoint_.mistakes,
                     "With so many samples that were taken for another class, for engine report")
        ->check(CLI::Range(0, 1000))
        ->needs(json);
    eval->callback([this] { code_ = EvalCommand(checkpoint_, environment_); });
  }

  void AddPredict() {
    CLI::App* predict = app_.add_subcommand("predict", "Write what a trained model says of data");
    AddCheckpointFlags(predict, &predict_);
    AddDataFlags(predict, &predict_, {"all", "held_out"});
    predict->add_option("--top", predict_.top, "So many classes for each sample")
        ->check(CLI::Range(1, 1000000));
    predict->add_flag("--outputs", predict_.outputs, "Also the outputs (logits); of json alone");
    predict->add_option("--format", predict_.format, "npy: the outputs as they are")
        ->check(CLI::IsMember({"json", "csv", "npy"}));
    predict->add_option("--out", predict_.out, "File to write; without it, standard output")
        ->type_name("FILE");
    predict->callback([this] { code_ = PredictCommand(predict_, environment_); });
  }

  void AddExport() {
    CLI::App* made = app_.add_subcommand("export", "Write a trained model for other programs");
    AddCheckpointFlags(made, &export_);
    made->add_option("--safetensors", export_.safetensors, "Its weights, named as in PyTorch")
        ->type_name("FILE");
    CLI::Option* const onnx =
        made->add_option("--onnx", export_.onnx, "The whole model, for inference")
            ->type_name("FILE");
    made->add_option("--batch", export_.batch, "Samples that the ONNX model takes at once")
        ->check(CLI::IsMember({"dynamic"}) | CLI::Range(1, 1 << 20))
        ->needs(onnx);
    made->add_flag("--fold", export_.fold, "Convolutions do the batch norms behind them")
        ->needs(onnx);
    made->callback([this] { code_ = ExportCommand(export_, environment_); });
  }

  // `splits`: the first is the default.
  void AddDataFlags(CLI::App* app, CheckpointFlags* flags, std::vector<std::string> splits) {
    flags->split = splits[0];
    app->add_option(
           "--data", flags->data,
           "Other data: a block, as 'mnist { ... }', or the path of other data of the kind")
        ->type_name("DATA");
    app->add_option("--split", flags->split, "Which samples of it")
        ->check(CLI::IsMember(std::move(splits)))
        ->capture_default_str();
  }

  const command::Environment& environment_;
  CLI::App app_{"Plugin-based engine for distributed (data-parallel) training", "engine"};
  RunFlags run_;
  ServeFlags serve_;
  command::PluginFlags plugins_;
  std::string plugin_name_, plugin_kind_, plugin_file_;
  command::ConfigFlags config_;
  CheckpointFlags checkpoint_, predict_, export_;
  int code_ = 0;
};

}  // namespace
}  // namespace engine::cli

// Blocks of some megabytes come and go in every step (messages of libraries, above all). Given back
// to the system each time, their pages would be zeroed and mapped again: 0.4 ms per megabyte.
static void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // as high as it goes
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

// Where a standard stream is closed, the next file or socket would take its number, and messages
// would be written into it.
static void OpenStandardStreams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

// A reader that left (a pipe) and a file that may not grow (ulimit -f) are errors of the write.
static void IgnoreSignalsOfWrites() {
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
}

static engine::Status CheckLimits() {
  for (const engine::launch::Limit& limit : engine::launch::kLimits) {
    const int64_t now = engine::launch::LimitOf(limit);
    if (now < 0 || now >= limit.least) continue;
    return engine::Status::Error(engine::StatusCode::kResourceExhausted,
                                 "a limit of %lld %s is too low: raise it to %lld (ulimit %s)",
                                 static_cast<long long>(now), limit.name,
                                 static_cast<long long>(limit.least), limit.flag);
  }
  return {};
}

// Ranks, connections and libraries need descriptors, and nothing here uses select().
static void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // else it stays as it was
}

// `code`, unless what was printed is lost: not to a reader that has left.
static int CheckOutput(int code) {
  if (code != 0 || std::fflush(stdout) == 0 || errno == EPIPE) return code;
  return engine::command::ReportError(engine::Status::Error(
      engine::StatusCode::kStorage, "cannot write to standard output: %s", strerror(errno)));
}

int main(int argc, char** argv) {
  OpenStandardStreams();
  engine::launch::MakeErrorsNonBlocking();
  IgnoreSignalsOfWrites();
  RaiseDescriptorLimit();
  KeepFreedMemory();
  for (const engine::Status& ready : {CheckLimits(), engine::cli::InstallCrashHandler()}) {
    if (!ready.ok()) return engine::command::ReportError(ready);
  }
  const engine::command::Environment environment = engine::cli::ReadEnvironment();
  return CheckOutput(engine::cli::CommandLine(environment).Run(argc, argv));
}
