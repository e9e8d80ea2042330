#include "bench/link/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/unique_fd.h"

extern char** environ;

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(10);
constexpr size_t kMaxInput = size_t{64} << 10;  // what fits into a pipe that nobody reads yet

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot make a pipe: %s", strerror(errno));
  }
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

struct Child {
  pid_t pid = -1;
  UniqueFd output, errors;
};

Result<Child> Start(const std::vector<std::string>& arguments, const std::string& input) {
  ENGINE_ASSIGN_OR_RETURN(Pipe in, MakePipe());
  ENGINE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  ENGINE_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  ENGINE_CHECK(input.size() <= kMaxInput, "%zu", input.size());
  if (write(in.write.get(), input.data(), input.size()) != static_cast<ssize_t>(input.size())) {
    return Status::Error(StatusCode::kInternal, "cannot write to a pipe: %s", strerror(errno));
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write.get(), STDERR_FILENO);
  Child child;
  const int error = posix_spawn(&child.pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status::Error(StatusCode::kUnsupported, "cannot run %s: %s", argv[0], strerror(error));
  }
  child.output = std::move(out.read);
  child.errors = std::move(err.read);
  return child;
}

// Appends what is there; closes `fd` at its end.
void Drain(UniqueFd* fd, std::string* text) {
  char buffer[4096];
  const ssize_t count = read(fd->get(), buffer, sizeof buffer);
  if (count > 0) text->append(buffer, static_cast<size_t>(count));
  if (count == 0 || (count < 0 && errno != EINTR)) fd->reset();
}

// Both streams to their ends; false when the deadline passes first.
bool ReadAll(Child* child, std::string* output, std::string* errors) {
  const auto deadline = Clock::now() + kDeadline;
  while (child->output.valid() || child->errors.valid()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd fds[] = {{child->output.get(), POLLIN, 0}, {child->errors.get(), POLLIN, 0}};
    if (poll(fds, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) return false;
    if (fds[0].revents != 0) Drain(&child->output, output);
    if (fds[1].revents != 0) Drain(&child->errors, errors);
  }
  return true;
}

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

std::string FindProgram(const std::string& name) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    const std::string path = folder + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

Result<std::string> RunProgram(const std::vector<std::string>& arguments,
                               const std::string& input) {
  ENGINE_ASSIGN_OR_RETURN(Child child, Start(arguments, input));
  std::string output, errors;
  const bool in_time = ReadAll(&child, &output, &errors);
  if (!in_time) kill(child.pid, SIGKILL);
  int status = 0;
  pid_t ended;
  do ended = waitpid(child.pid, &status, 0);
  while (ended < 0 && errno == EINTR);
  std::string command;
  for (const std::string& argument : arguments) command += (command.empty() ? "" : " ") + argument;
  if (!in_time) {
    return Status::Error(StatusCode::kTimeout, "%s did not end within 10 s", command.c_str());
  }
  if (ended == child.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  return Status::Error(StatusCode::kInternal, "%s failed: %s", command.c_str(),
                       errors.empty() ? "it says nothing" : Trimmed(errors).c_str());
}

}  // namespace engine::bench
