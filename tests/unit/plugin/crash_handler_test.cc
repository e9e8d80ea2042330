#include "app/cli/crash_handler.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <tuple>

#include "core/plugin/create_object.h"
#include "core/plugin/plugin_host.h"
#include "tests/unit/plugin/logging_rank.h"
#include "tests/unit/plugin/plugin_folder.h"

namespace engine::plugin {
namespace {

struct Crash {
  int signal = 0;    // that ended the child
  std::string line;  // that the handler wrote
};

// Runs `body` in a child with the crash handler installed.
template <typename Body>
Crash CrashOf(Body body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    if (!cli::InstallCrashHandler(ends[1]).ok()) _exit(1);
    body();
    _exit(0);
  }
  close(ends[1]);
  Crash crash;
  char buffer[512];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    crash.line.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  crash.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return crash;
}

class CrashHandlerTest : public ::testing::Test {
 protected:
  Crash CrashOfPlugin(const std::string& fault) {
    return CrashOf([&] {
      PluginHost host("faulty", rank_.context, nullptr, nullptr);
      const auto object = CreateObject(folder_.Choose("faulty", "fault", fault), host);
      _exit(object.ok() ? 2 : 3);
    });
  }

  PluginFolder folder_;
  LoggingRank rank_;
  const std::string file_ = folder_.Add("faulty");
};

// Of the instruction that faults, of an overflow of the stack, and of what it called.
TEST_F(CrashHandlerTest, NamesThePlugin) {
  const std::string plugin = "plugin 'faulty' (" + file_ + ")\n";
  for (const auto& [fault, signal, where] : {std::tuple{"segv", SIGSEGV, "SIGSEGV in "},
                                             {"overflow", SIGSEGV, "SIGSEGV in "},
                                             {"abort", SIGABRT, "SIGABRT in code called by "}}) {
    const Crash crash = CrashOfPlugin(fault);
    EXPECT_EQ(crash.signal, signal);
    EXPECT_EQ(crash.line, std::string("engine: crashed with ") + where + plugin);
  }
}

TEST_F(CrashHandlerTest, BlamesNoPluginForACrashElsewhere) {
  const Crash crash = CrashOf([&] {
    PluginHost host("faulty", rank_.context, nullptr, nullptr);
    if (CreateObject(folder_.Choose("faulty", "fault", "error"), host).ok()) _exit(1);
    raise(SIGFPE);
  });
  EXPECT_EQ(crash.signal, SIGFPE);
  EXPECT_EQ(crash.line, "engine: crashed with SIGFPE outside of any plugin\n");
}

// A crash whose line cannot be written, since nobody reads, with `second` in the same thread
// meanwhile: the process ends nevertheless, by its first signal.
int SignalThatEndsAStuckReport(int second) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  fcntl(ends[1], F_SETPIPE_SZ, 4096);
  const std::string page(4096, 'x');
  EXPECT_EQ(write(ends[1], page.data(), page.size()), 4096);
  const pid_t child = fork();
  if (child == 0) {
    if (!cli::InstallCrashHandler(ends[1]).ok()) _exit(1);
    raise(SIGFPE);
    _exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  if (second != 0) kill(child, second);
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 3000 && ended == 0; ++i) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  for (const int end : ends) close(end);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(CrashHandler, EndsWhenItsLineCannotBeWritten) {
  for (const int second : {0, SIGBUS}) EXPECT_EQ(SignalThatEndsAStuckReport(second), SIGFPE);
}

}  // namespace
}  // namespace engine::plugin
