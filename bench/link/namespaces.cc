#include "bench/link/namespaces.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bench/link/program.h"

extern char** environ;

namespace engine::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "engine-";
constexpr const char* kFolder = "/run/netns";       // where ip keeps them
constexpr const char* kFilesFolder = "/etc/netns";  // of files that replace those of /etc inside
constexpr const char* kShell = "/bin/sh";

// $1 is ip, the others are names. A process can start another one between the list and the signal:
// hence several rounds. One that is about to enter (`ip netns exec`) is not in the list yet, and is
// looked for first. A namespace without a name lives on as long as a process in it, so the
// processes go first; the name goes last, so that what is interrupted is found again.
constexpr const char* kRemove = R"sh(
ip=$1; shift
for name in "$@"; do
  for round in 1 2 3 4 5; do
    pids=$({ pgrep -f "netns exec $name "; "$ip" netns pids "$name"; } 2>/dev/null)
    [ -z "$pids" ] && break
    kill -9 $pids 2>/dev/null
  done
  rm -f "/etc/netns/$name/hosts"
  rmdir "/etc/netns/$name" 2>/dev/null
  "$ip" netns del "$name" 2>/dev/null
done
true)sh";

// Signals for the terminal's foreground do not reach the guard (a session of its own); those sent
// to it by name or to every process at a shutdown are not for it to obey. `read` waits for the end
// of the input.
constexpr const char* kGuard = "trap '' INT TERM HUP PIPE; while read -r line; do :; done";

std::vector<std::string> ShellCommand(const std::string& script, const std::string& ip,
                                      const std::vector<std::string>& names) {
  std::vector<std::string> command = {kShell, "-c", script, "engine-link-guard", ip};
  command.insert(command.end(), names.begin(), names.end());
  return command;
}

bool Exists(const std::string& name) {
  std::error_code error;
  return fs::exists(fs::path(kFolder) / name, error);
}

// The process that made the namespace, or 0 when the name is not one of ours.
pid_t Owner(const std::string& name) {
  if (!name.starts_with(kPrefix)) return 0;
  const char* begin = name.data() + strlen(kPrefix);
  const char* end = name.data() + name.size();
  pid_t pid = 0;
  const auto parsed = std::from_chars(begin, end, pid);
  return parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-' ? pid : 0;
}

// Names that no namespace has yet: this process may own several sets.
std::vector<std::string> FreeNames(const std::vector<std::string>& suffixes) {
  for (int serial = 0;; ++serial) {
    const std::string stem =
        kPrefix + std::to_string(getpid()) + "-" + std::to_string(serial) + "-";
    std::vector<std::string> names;
    bool is_free = true;
    for (const std::string& suffix : suffixes) {
      names.push_back(stem + suffix);
      is_free = is_free && !Exists(names.back());
    }
    if (is_free) return names;
  }
}

}  // namespace

Status RemoveStaleNamespaces(const std::string& ip) {
  std::vector<std::string> stale;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kFolder, error)) {
    const std::string name = entry.path().filename().string();
    const pid_t owner = Owner(name);
    if (owner > 0 && kill(owner, 0) != 0 && errno == ESRCH) stale.push_back(name);
  }
  if (stale.empty()) return {};
  return RunProgram(ShellCommand(kRemove, ip, stale)).status();
}

Result<std::unique_ptr<Namespaces>> Namespaces::Create(const std::string& ip,
                                                       const std::vector<std::string>& suffixes) {
  std::unique_ptr<Namespaces> namespaces(new Namespaces(ip, FreeNames(suffixes)));
  // The guard first: there is no moment in which a namespace has none.
  ENGINE_RETURN_IF_ERROR(namespaces->StartGuard());
  std::string commands;
  for (const std::string& name : namespaces->names_) commands += "netns add " + name + "\n";
  const auto made = RunProgram({ip, "-batch", "-"}, commands);
  if (!made.ok()) {
    return Status::Error(StatusCode::kUnsupported,
                         "cannot make network namespaces (%s); in a container this needs "
                         "the capabilities SYS_ADMIN and NET_ADMIN",
                         made.status().message());
  }
  return namespaces;
}

Status Namespaces::SetHostNames(size_t index, const std::string& lines) {
  const fs::path folder = fs::path(kFilesFolder) / names_[index];
  std::error_code error;
  fs::create_directories(folder, error);
  std::ofstream stream(folder / "hosts");
  stream << lines;
  stream.close();
  if (stream.good()) return {};
  return Status::Error(StatusCode::kUnsupported,
                       "cannot write %s/hosts, which gives names to the hosts of a namespace; "
                       "make %s writable",
                       folder.c_str(), kFilesFolder);
}

Namespaces::~Namespaces() {
  guard_input_.Close();
  WaitForGuard();
  // Only when somebody killed the guard is anything left.
  for (const std::string& name : names_) {
    if (Exists(name)) (void)RunProgram(ShellCommand(kRemove, ip_, {name})).ok();
  }
}

Status Namespaces::StartGuard() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot make a pipe: %s", strerror(errno));
  }
  kit::UniqueFd read_end(fds[0]);
  guard_input_ = kit::UniqueFd(fds[1]);
  const std::vector<std::string> command = ShellCommand(std::string(kGuard) + kRemove, ip_, names_);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, read_end.get(), STDIN_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // It outlives us: it must hold none of our files (a reader of our output would wait for it).
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const int error = posix_spawn(&guard_, kShell, &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return {};
  guard_ = -1;
  return Status::Error(StatusCode::kUnsupported, "cannot run %s: %s", kShell, strerror(error));
}

// A child of ours that inherited the pipe without exec keeps the guard waiting: then we remove
// what is ours without it, and it finds nothing to do in the end.
void Namespaces::WaitForGuard() {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + 5s;
  while (guard_ > 0) {
    const pid_t ended = waitpid(guard_, nullptr, WNOHANG);
    if (ended == guard_ || (ended < 0 && errno != EINTR)) break;
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(1ms);
  }
  guard_ = -1;
}

}  // namespace engine::bench
