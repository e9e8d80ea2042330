// With LD_TRACE_LOADED_OBJECTS in its environment, as ldd(1) sets it, the dynamic linker lists what it
// would map and runs nothing:
//
//   libstdc++.so.6 => /usr/lib/x86_64-linux-gnu/libstdc++.so.6 (0x00007f...)
//   libmissing.so.1 => not found

#include "app/plugins/dependencies.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "app/plugins/words.h"
#include "kit/unique_fd.h"

namespace engine::plugins {
namespace {

constexpr unsigned kSeconds = 20;  // that a constructor may take

struct Ended {
  std::string written;
  int status = 0;  // of waitpid
};

// Runs `body` in a process of its own and reads what it writes there to standard error and to the
// descriptor that it gets.
Result<Ended> InAProcess(const std::function<void(int)>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status::Error(StatusCode::kResourceExhausted, "no pipe: %s", strerror(errno));
  }
  const kit::UniqueFd read_end(ends[0]);
  kit::UniqueFd write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return Status::Error(StatusCode::kResourceExhausted, "no process: %s", strerror(errno));
  }
  if (pid == 0) {
    alarm(kSeconds);
    dup2(write_end.get(), STDERR_FILENO);
    body(write_end.get());
    _exit(0);
  }
  write_end.Close();
  Ended ended;
  char buffer[4096];
  for (ssize_t got; (got = read(read_end.get(), buffer, sizeof buffer)) > 0;) {
    ended.written.append(buffer, static_cast<size_t>(got));
  }
  waitpid(pid, &ended.status, 0);
  return ended;
}

std::string LastLine(const std::string& text) {
  std::string last;
  for (const std::string& line : Split(text, '\n')) last = line.empty() ? last : line;
  return last;
}

// The program that has loaded this one.
std::string DynamicLinker() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(getauxval(AT_BASE)), &info) != 0;
  return found && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace

Status CheckDependencies(const std::string& file) {
  const std::string linker = DynamicLinker();
  const auto list = [&](int fd) {
    if (dup2(fd, STDOUT_FILENO) < 0 || setenv("LD_TRACE_LOADED_OBJECTS", "1", 1) != 0) return;
    execl(linker.c_str(), linker.c_str(), file.c_str(), nullptr);
  };
  ENGINE_ASSIGN_OR_RETURN(const Ended listed, InAProcess(list));
  std::vector<std::string> missing;
  for (const std::string& line : Split(listed.written, '\n')) {
    const size_t arrow = line.find(" => not found");
    if (arrow != line.npos) missing.push_back(line.substr(line.find_first_not_of('\t'), arrow - 1));
  }
  if (missing.empty()) return {};
  return Status::Error(StatusCode::kPlugin,
                       "needs %s, which the dynamic linker does not find: install it, or say in "
                       "LD_LIBRARY_PATH where it lies",
                       Join(missing).c_str());
}

Status TryToLoad(const plugin::PluginEntry& entry) {
  constexpr char kMark = 1;  // before the message of the loader, which may be empty
  const auto load = [&](int fd) {
    const std::string marked = kMark + std::string(entry.load(entry).status().message());
    (void)!write(fd, marked.data(), marked.size());
  };
  ENGINE_ASSIGN_OR_RETURN(const Ended loaded, InAProcess(load));
  const size_t mark = loaded.written.rfind(kMark);
  if (mark != std::string::npos) {
    const std::string message = loaded.written.substr(mark + 1);
    return message.empty() ? Status() : Status::Error(StatusCode::kPlugin, "%s", message.c_str());
  }
  const int signal = WIFSIGNALED(loaded.status) ? WTERMSIG(loaded.status) : 0;
  if (signal == SIGALRM) {
    return Status::Error(StatusCode::kPlugin, "its constructors take longer than %u s", kSeconds);
  }
  return Status::Error(StatusCode::kPlugin, "its constructors end the process with %s %d: %s",
                       signal != 0 ? "signal" : "exit code",
                       signal != 0 ? signal : WEXITSTATUS(loaded.status),
                       LastLine(loaded.written).c_str());
}

}  // namespace engine::plugins
