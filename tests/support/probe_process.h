// Starts a program, reads what it prints, and makes sure that nothing of it is left.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace engine::test {

// Only a bug reaches it; large enough for a sanitizer on a busy machine.
inline constexpr std::chrono::seconds kHealthy{60};

// Waits until `condition` holds; false, and the test fails, when it does not in time.
bool Await(const std::string& what, const std::function<bool()>& condition,
           std::chrono::seconds timeout = kHealthy);

// A file without a name, to whose end each write goes, whoever else writes; and what it holds.
int OutputFile();
std::string ReadAll(int fd);

}  // namespace engine::test

namespace engine {

inline constexpr int kDeadlineMs = 30000;  // that only a bug reaches

// Starts `command` in `folder` as the leader of a process group of its own, with `environment` and
// little else, and its output in two open files.
int StartProgram(std::vector<std::string> command,
                 const std::map<std::string, std::string>& environment, const std::string& folder,
                 int out, int err);

// Kills what is left of its process group, if it is > 0.
void KillProgram(int pid);

// Of what waitpid said: exit code, or 128 + signal.
int ExitCodeOf(int status);

class ProbeProcess {
 public:
  // `environment` is added to a minimal one. The process leads a process group of its own.
  explicit ProbeProcess(std::vector<std::string> command,
                        const std::map<std::string, std::string>& environment = {});
  ~ProbeProcess();  // kills what is left
  ProbeProcess(const ProbeProcess&) = delete;
  ProbeProcess& operator=(const ProbeProcess&) = delete;

  int pid() const { return pid_; }
  // Reads until `count` lines start with `prefix`; those lines without it.
  std::vector<std::string> ReadLines(const std::string& prefix, size_t count);
  // Waits for the end: exit code, or 128 + signal; -1 when it does not come.
  int Wait();
  // All it has printed; after Wait.
  const std::string& output() const { return output_; }

 private:
  int pid_ = -1;
  int file_ = -1;  // without a name
  std::string output_;
};

// A port of loopback that nobody gets by chance while this process lives: bound, but not listened at.
int FreePort();

// Makes this process the parent of orphans, so that AwaitNoDescendants can see them. Call first.
void AdoptOrphans();
// True when every descendant has ended, within the deadline.
bool AwaitNoDescendants();

}  // namespace engine
