// engine-conform, which `engine conform` starts: flags, then judge.h, then report.h.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/command/command.h"
#include "app/launch/exit_code.h"
#include "app/launch/launch.h"
#include "app/launch/launcher_environment.h"
#include "app/plugins/words.h"
#include "tools/conform/child.h"
#include "tools/conform/judge.h"
#include "tools/conform/ops/op_search.h"
#include "tools/conform/report.h"

namespace engine::conform {
namespace {

constexpr int kUsage = 2;

struct Flags {
  std::string file;
  std::vector<std::string> set, with, inputs, custom_gradients;
  int ranks = 0;
  uint32_t seed = 1;
  std::vector<std::string> suites;  // NAME or NAME.TEST
  std::string level = "must";
  std::string json;  // "-": to standard output
  bool badge = false;
  int timeout_s = 60;
  command::PluginFlags plugins;
  launch::LaunchFlags launch;
  // Of a child:
  bool child = false;
  std::vector<std::string> skip;
};

launch::EnvironmentVariables Environment() {
  launch::EnvironmentVariables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != text.npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

int Refuse(const Status& status) {
  std::fprintf(stderr, "engine: %s\n", status.message());
  return launch::ExitCode(status.code());
}

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("file", flags->file, "The library, libengine_NAME.so")
      ->required()
      ->type_name("FILE");
  const auto add_list = [app](const char* flag, std::vector<std::string>* values, const char* type,
                              const char* help) {
    app->add_option(flag, *values, help)->type_name(type)->allow_extra_args(false);
  };
  add_list("--set", &flags->set, "[NAME.]KEY=VALUE",
           "An option of the plugin, or of NAME that is inside of it or given by --with");
  add_list("--with", &flags->with, "FILE",
           "Another plugin that the suites may use, such as the ops whose device ranks get");
  command::AddPluginFolders(app, "--plugin-path", &flags->plugins.folders);
  add_list("--inputs", &flags->inputs, "OP=INPUTS",
           "What an op is fed, where the search finds nothing: 'linear(units=3)=float32[8*,16]', "
           "the star at the dimension of samples");
  add_list("--custom-gradient", &flags->custom_gradients, "OP",
           "An op whose gradients are meant not to be the derivatives");
  add_list("--suite", &flags->suites, "NAME[.TEST]", "Only this suite, or test; can be repeated");
  app->add_option("-n,--ranks", flags->ranks, "Number of ranks (default: as each test likes)")
      ->check(CLI::Range(1, 64));
  app->add_option("--seed", flags->seed, "The first seed of each test")->capture_default_str();
  app->add_option("--level", flags->level, "The least level whose failures count: must, should")
      ->capture_default_str()
      ->check(CLI::IsMember({"must", "should"}));
  app->add_option("--json", flags->json, "Write everything as JSON, instead of text or to FILE")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  app->add_flag("--badge", flags->badge, "Write one line of Markdown for a README instead");
  app->add_option("--timeout", flags->timeout_s, "Seconds that one test may take")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command::AddLauncher(app, &flags->launch);
  app->add_flag("--child", flags->child)->group("");
  app->add_option("--skip", flags->skip)->group("")->allow_extra_args(false);
}

Result<Subject> ReadSubject(const Flags& flags) {
  ENGINE_ASSIGN_OR_RETURN(PluginUnderTest plugin, PluginUnderTest::Load(flags.file));
  Subject subject{.plugin = std::move(plugin), .ranks = flags.ranks, .seed = flags.seed};
  for (const std::string& text : flags.inputs) {
    ENGINE_RETURN_IF_ERROR(OpSample::Parse(text).status());
    subject.inputs.push_back(text);
  }
  subject.custom_gradients = flags.custom_gradients;
  for (const std::string& file : flags.with) {
    ENGINE_ASSIGN_OR_RETURN(PluginUnderTest other, PluginUnderTest::Load(file));
    subject.others.push_back(std::move(other));
  }
  command::Environment environment{.variables = Environment()};
  environment.binary_folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  ENGINE_ASSIGN_OR_RETURN(const auto folders, command::PluginFolders(flags.plugins, environment));
  ENGINE_RETURN_IF_ERROR(subject.SetOptions(flags.set, folders));
  return subject;
}

// kInvalidArgument: there is no such suite; kPlugin: it judges plugins of another kind.
Result<std::vector<SuiteChoice>> ChooseSuites(const Flags& flags, const plugins::PluginFile& file) {
  std::vector<SuiteChoice> chosen;
  std::vector<std::string> all, fitting;
  for (const Suite& suite : Suites()) all.emplace_back(suite.name);
  for (const Suite* suite : SuitesOf(file.kind)) {
    fitting.emplace_back(suite->name);
    if (flags.suites.empty()) chosen.push_back({.suite = suite});
    for (const std::string& name : flags.suites) {
      const size_t dot = name.find('.');
      if (name.substr(0, dot) != suite->name) continue;
      chosen.push_back({suite, dot == name.npos ? "" : name.substr(dot + 1)});
    }
  }
  for (const std::string& name : flags.suites) {
    const std::string suite = name.substr(0, name.find('.'));
    if (std::ranges::count(fitting, suite) > 0) continue;
    const bool known = std::ranges::count(all, suite) > 0;
    return Status::Error(
        known ? StatusCode::kPlugin : StatusCode::kInvalidArgument,
        "there is no suite '%s' for plugin '%s', a plugin of kind %s: choose of %s", suite.c_str(),
        file.name.c_str(), Name(file.kind), plugins::Join(fitting).c_str());
  }
  return chosen;
}

// Standard output is the parent's; what a plugin prints there is of no use.
int BeChild(const Flags& flags, Subject subject, const launch::LaunchPlan& plan) {
  const auto chosen = ChooseSuites(flags, subject.plugin.file());
  if (!chosen.ok()) return Refuse(chosen.status());
  const int events = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  std::vector<SuiteRun> runs;
  for (const auto& [suite, test] : *chosen) {
    std::string filter;
    for (const std::string& name : plugins::Split(suite->tests, ':')) {
      filter += name + "." + (test.empty() ? "*" : test) + ":";
    }
    filter += "-";
    for (const std::string& name : flags.skip) filter += "*." + name + ":";
    runs.push_back({suite, filter});
  }
  if (plan.mode != launch::LaunchPlan::Mode::kJoin) {
    RunSuites(std::move(subject), runs, events);
    return 0;
  }
  const launch::LaunchOutcome outcome =
      launch::Launch(plan, {}, [&](base::RankContext& rank) -> Status {
        subject.launched = &rank;
        RunSuites(subject, runs, events);
        return {};
      });
  if (!outcome.status.ok()) std::fprintf(stderr, "%s\n", outcome.status.message());
  return outcome.exit_code;
}

bool Write(const std::string& file, const std::string& text) {
  if (file == "-") return std::fputs(text.c_str(), stdout) >= 0;
  std::ofstream out(file);
  out << text << std::flush;
  return out.good();
}

// What every run of the same judgement gets, the child's and the one that the user is told of.
std::vector<std::string> GivenAgain(const Flags& flags) {
  const std::pair<const char*, const std::vector<std::string>*> given[] = {
      {"--set", &flags.set},
      {"--with", &flags.with},
      {"--plugin-path", &flags.plugins.folders},
      {"--inputs", &flags.inputs},
      {"--custom-gradient", &flags.custom_gradients}};
  std::vector<std::string> words;
  for (const auto& [flag, values] : given) {
    for (const std::string& value : *values) words.insert(words.end(), {flag, value});
  }
  if (flags.ranks > 0) words.insert(words.end(), {"-n", std::to_string(flags.ranks)});
  return words;
}

// What the child is started with: all flags but those that choose suites.
std::vector<std::string> CommandOf(const Flags& flags) {
  std::vector<std::string> command = {"engine-conform", flags.file, "--seed",
                                      std::to_string(flags.seed)};
  const std::vector<std::string> again = GivenAgain(flags);
  command.insert(command.end(), again.begin(), again.end());
  if (!flags.launch.rendezvous.empty()) {
    command.insert(command.end(), {"--rendezvous", flags.launch.rendezvous});
  }
  if (!flags.launch.launcher.empty()) {
    command.insert(command.end(), {"--launcher", flags.launch.launcher});
  }
  return command;
}

// One that broke the process, and that nobody else can tell of.
void TellOfRank(int rank, const Judgement& judgement) {
  for (const SuiteResult& suite : judgement.suites) {
    for (const TestResult& test : suite.tests) {
      if (!test.broke) continue;
      std::fprintf(stderr, "engine: rank %d: %s.%s: %s\n", rank, test.suite.c_str(),
                   test.test.c_str(), test.message.c_str());
    }
  }
}

int Judge(const Flags& flags, const Subject& subject, const launch::LaunchPlan& plan) {
  const auto chosen = ChooseSuites(flags, subject.plugin.file());
  if (!chosen.ok()) return Refuse(chosen.status());
  Judgement judgement{.file = subject.plugin.file(), .repeat = "engine conform " + flags.file};
  for (const std::string& word : GivenAgain(flags)) {
    const bool plain = word.find_first_of(" ()[]*") == word.npos;
    judgement.repeat += plain ? " " + word : " '" + word + "'";
  }
  auto results = JudgeSuites(*chosen, {.command = CommandOf(flags),
                                       .wanted = !flags.suites.empty(),
                                       .timeout_s = flags.timeout_s,
                                       .launched = plan.mode == launch::LaunchPlan::Mode::kJoin});
  if (!results.ok()) return Refuse(results.status());
  judgement.suites = std::move(*results);
  const bool failed =
      judgement.Failed(true) > 0 || (flags.level == "should" && judgement.Failed(false) > 0);
  const int exit_code = failed ? launch::ExitCode(StatusCode::kPlugin) : 0;
  if (plan.info.rank != 0) {
    // Rank 0 has heard of the rest; a launcher ends it at the first other exit code, unheard.
    TellOfRank(plan.info.rank, judgement);
    return 0;
  }
  if (!flags.json.empty() && !Write(flags.json, Json(judgement))) {
    return Refuse(Status::Error(StatusCode::kStorage, "cannot write %s", flags.json.c_str()));
  }
  if (flags.badge) {
    Write("-", Badge(judgement));
  } else if (flags.json != "-") {
    Write("-", Text(judgement));
  }
  return exit_code;
}

int Main(int argc, char** argv) {
  CLI::App app("Judges a plugin by the contract that the headers of the SDK state",
               "engine conform");
  app.footer(
      "Exit codes: 0 it conforms; 2 usage; 78 an option; 79 it does not conform, or is no plugin.");
  Flags flags;
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  auto subject = ReadSubject(flags);
  if (!subject.ok()) return Refuse(subject.status());
  const auto plan = engine::launch::ResolveLaunch(flags.launch, Environment());
  if (!plan.ok()) return Refuse(plan.status());
  if (flags.child) return BeChild(flags, std::move(*subject), *plan);
  return Judge(flags, *subject, *plan);
}

}  // namespace
}  // namespace engine::conform

int main(int argc, char** argv) {
  // Buffers of megabytes come and go with each transfer: their pages stay.
  (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return engine::conform::Main(argc, argv);
}
