#include "app/command/command.h"

#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "app/command/version.h"
#include "app/config/default_config.h"
#include "app/launch/exit_code.h"
#include "app/launch/log.h"
#include "app/launch/member.h"
#include "app/launch/stop_signals.h"
#include "app/plugins/roles.h"
#include "app/plugins/words.h"
#include "kit/file.h"
#include "kit/unique_fd.h"

namespace engine::command {
namespace {

Result<std::string> ReadConfigFile(const std::string& path) {
  const auto file = kit::MappedFile::Open(path);
  if (file.status().code() == StatusCode::kMissingInput)
    return file.status().WithContext("configuration");
  if (!file.ok() || file->bytes().size() > config::kMaxConfigBytes) {
    return Status::Error(StatusCode::kConfig,
                         "configuration %s is not a text file of at most 16 MiB", path.c_str());
  }
  return std::string(file->bytes().begin(), file->bytes().end());
}

// Where plugins lie that came with the engine.
std::vector<std::string> OwnFolders(const Environment& environment) {
  std::vector<std::string> folders;
  if (!environment.binary_folder.empty()) {
    folders.push_back(environment.binary_folder + "/plugins");
    folders.push_back(environment.binary_folder + "/../lib/engine/plugins");
    folders.push_back(environment.binary_folder + "/../" + kInstallLibrary + "/engine/plugins");
  }
  folders.emplace_back(kInstallPluginFolder);
  return folders;
}

}  // namespace

void AddPlugins(CLI::App* app, const std::string& flag, std::vector<std::string>* plugins,
                const std::string& help) {
  app->add_option(flag, *plugins, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,...");
}

void AddOverrides(CLI::App* app, const std::string& flag, std::vector<std::string>* overrides,
                  const std::string& help) {
  app->add_option(flag, *overrides, help)
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
}

void AddPluginFolders(CLI::App* app, const std::string& flag, std::vector<std::string>* folders,
                      const std::string& help) {
  app->add_option(flag, *folders, help)->allow_extra_args(false)->type_name("DIR");
}

void AddLauncher(CLI::App* app, launch::LaunchFlags* flags) {
  app->add_option("--rendezvous", flags->rendezvous,
                  "Where rank 0 can be reached, for ranks on several hosts")
      ->type_name("HOST:PORT");
  app->add_option("--launcher", flags->launcher,
                  "Whose environment variables name this rank: auto, none, torchrun, openmpi, "
                  "slurm, pmi, kubernetes")
      ->check(CLI::IsMember({"auto", "none", "torchrun", "openmpi", "slurm", "pmi", "kubernetes"}));
}

void AddAccessFlags(CLI::App* app, std::string* key_file, bool* insecure) {
  app->add_option("--key-file", *key_file,
                  "Secret that all members share where they meet over a network; the run makes the "
                  "file if there is none")
      ->type_name("FILE");
  app->add_flag("--insecure", *insecure, "Whoever can connect may join, over a network too");
}

Result<std::vector<std::string>> PluginFolders(const PluginFlags& flags,
                                               const Environment& environment) {
  std::vector<std::string> folders = flags.folders;
  for (const std::string& folder : folders) {
    ENGINE_RETURN_IF_ERROR(plugins::CheckFolder(folder).WithContext("--plugin-path"));
  }
  const auto listed = environment.variables.find("ENGINE_PLUGIN_PATH");
  if (listed != environment.variables.end()) {
    const std::vector<std::string> list = plugins::Split(listed->second, ':');
    folders.insert(folders.end(), list.begin(), list.end());
  }
  const std::vector<std::string> own = OwnFolders(environment);
  folders.insert(folders.end(), own.begin(), own.end());
  return folders;
}

std::vector<std::string> ShadowNotices(const config::Config& config,
                                       const Environment& environment) {
  std::set<std::string> own;
  for (const std::string& folder : OwnFolders(environment)) {
    own.insert(plugins::AbsolutePath(folder));
  }
  std::vector<std::string> notices;
  for (const plugin::PluginEntry* entry : plugins::EntriesOf(config.plugins())) {
    const std::string& used = entry->path;
    std::vector<std::string> others;
    bool found = false;  // by its name
    for (const plugins::PluginFile& file : config.catalog().files()) {
      if (file.name != entry->name) continue;
      if (!file.shadowed) found = file.path == used;
      if (file.shadowed && found) others.push_back(file.path);
    }
    if (others.empty() || own.contains(used.substr(0, used.rfind('/')))) continue;
    notices.push_back(entry->Title() + ": " + used + " is used, and not " + plugins::Join(others) +
                      ", which has the same name");
  }
  return notices;
}

std::vector<config::DefaultPlugin> DefaultCommunicators(const RankInfo& shape) {
  if (shape.servers > 0) return {{.name = "zmq_ps", .device = ""}};
  return {{.name = "nccl", .device = "cuda"},
          {.name = shape.one_host ? "shm" : "tcp", .device = ""}};
}

Result<plugins::HostNetwork> NetworkOf(const Environment& environment, base::RankContext& member) {
  plugins::HostNetwork network;
  for (const char* name : {"ENGINE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const auto found = environment.variables.find(name);
    if (found == environment.variables.end() || !network.interface.empty()) continue;
    // The others may hold lists and prefixes, which are none.
    const bool own = found->first.starts_with("ENGINE");
    if (own || if_nametoindex(found->second.c_str()) != 0) network.interface = found->second;
  }
  ENGINE_ASSIGN_OR_RETURN(network.address, launch::AddressOf(member));
  return network;
}

Result<config::Config> LoadConfig(config::ConfigRequest request, const PluginFlags& flags,
                                  const Environment& environment) {
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> all, PluginFolders(flags, environment));
  request.first_folders = flags.folders;
  request.plugin_folders.assign(all.begin() + static_cast<std::ptrdiff_t>(flags.folders.size()),
                                all.end());
  return config::Config::Load(request);
}

Result<config::Config> LoadConfig(const ConfigFlags& flags, const Environment& environment,
                                  const std::vector<config::DefaultPlugin>& communicators) {
  config::ConfigRequest request{
      .overrides = flags.overrides, .plugins = flags.plugins, .default_plugins = communicators};
  if (flags.file.empty()) {
    request.text = config::DefaultConfigText();
    request.origin = "built-in default";
  } else {
    ENGINE_ASSIGN_OR_RETURN(request.text, ReadConfigFile(flags.file));
    request.origin = flags.file;
    const size_t slash = flags.file.rfind('/');
    request.base_folder = slash == std::string::npos ? "." : flags.file.substr(0, slash + 1);
  }
  return LoadConfig(std::move(request), flags.plugin, environment);
}

Status PrepareFolder(const std::string& folder) {
  const auto refuse = [&](const char* what, const char* why) {
    return Status::Error(StatusCode::kStorage, "cannot %s %s: %s", what, folder.c_str(), why);
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return refuse("make the folder", error.message().c_str());
  // Permission bits do not tell: of a read-only file system, or to root. A file without a name is left by
  // nobody who is killed; not every file system has them.
  kit::UniqueFd file(open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!file && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string probe = folder + "/.engine-probe-XXXXXX";
    file = kit::UniqueFd(mkostemp(probe.data(), O_CLOEXEC));
    if (file) unlink(probe.c_str());
  }
  if (!file) return refuse("write into", strerror(errno));
  return {};
}

void EndAtFirstSignal() {
  sigset_t all;
  sigemptyset(&all);
  for (const int number : launch::kStopSignals) sigaddset(&all, number);
  pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
}

int ReportError(const Status& status) {
  if (status.ok()) return 0;
  const bool blames = status.rank() != base::kNobody && status.code() != StatusCode::kInterrupted;
  const std::string who = blames ? base::MemberName(status.rank()) + ": " : "";
  launch::ErrorLines().Write("engine: " + who + launch::Printable(status.message()));
  return launch::ExitCode(status.code());
}

int ReportOutcome(const launch::LaunchOutcome& outcome, bool alone) {
  (void)ReportError(alone ? outcome.status.WithRank(base::kNobody) : outcome.status);
  if (outcome.hangs) _exit(outcome.exit_code);
  return outcome.exit_code;
}

}  // namespace engine::command
