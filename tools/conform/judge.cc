#include "tools/conform/judge.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "kit/unique_fd.h"

namespace engine::conform {
namespace {

using Clock = std::chrono::steady_clock;
using Event = std::vector<std::string>;

// The process of a suite. Its standard output is where events come from, what it writes to standard
// error is kept, and what it starts lies in its process group and ends with it.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Empty when it has no more to say, or not before `deadline`.
  Event Next(Clock::time_point deadline);
  // How the process ended, after its last event: "" as it should, or a clause.
  std::string End(bool silent, int timeout_s);

 private:
  std::string LastWords() const;

  kit::UniqueFd events_, errors_;
  pid_t pid_ = -1;
  std::string unread_;
};

Child::Child(const std::vector<std::string>& command) : errors_(memfd_create("stderr", 0)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  events_ = kit::UniqueFd(ends[0]);
  const kit::UniqueFd write_end(ends[1]);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(write_end.get(), STDOUT_FILENO);
  dup2(errors_.get(), STDERR_FILENO);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

Child::~Child() {
  if (pid_ <= 0) return;
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);  // not yet leader of its group
  waitpid(pid_, nullptr, 0);
}

Event Child::Next(Clock::time_point deadline) {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      const auto event = nlohmann::json::parse(unread_.substr(0, end), nullptr, false);
      unread_.erase(0, end + 1);
      if (event.is_array() && !event.empty()) return event.get<Event>();
      continue;  // not ours
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{.fd = events_.get(), .events = POLLIN, .revents = 0};
    const int count = left <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left));
    if (count < 0 && errno == EINTR) continue;
    char bytes[4096];
    const ssize_t size = count > 0 ? read(events_.get(), bytes, sizeof bytes) : 0;
    if (size <= 0) return {};
    unread_.append(bytes, static_cast<size_t>(size));
  }
}

// The last line that it wrote to standard error, in brackets.
std::string Child::LastWords() const {
  const off_t size = lseek(errors_.get(), 0, SEEK_END), from = std::max<off_t>(0, size - 400);
  std::string text(static_cast<size_t>(std::max<off_t>(0, size - from)), '\0');
  if (pread(errors_.get(), text.data(), text.size(), from) <= 0) return "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "" : " (" + text.substr(text.rfind('\n') + 1) + ")";
}

std::string Child::End(bool silent, int timeout_s) {
  const auto deadline = Clock::now() + std::chrono::seconds(silent ? 0 : timeout_s);
  int status = 0;
  while (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      return "it did not end within " + std::to_string(timeout_s) + " s" + LastWords();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(-pid_, SIGKILL);  // what it has left behind
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    return std::string("it crashed with SIG") + sigabbrev_np(WTERMSIG(status)) + LastWords();
  }
  if (WEXITSTATUS(status) == 0) return "";
  return "it ended the process with exit code " + std::to_string(WEXITSTATUS(status)) + LastWords();
}

// What an event says of the last test. False: it says something else.
void Add(const Event& event, TestResult* test) {
  const std::string& what = event[0];
  if (what == "contract" && event.size() == 4) {
    test->level = event[1], test->header = event[2], test->sentence = event[3];
  } else if (what == "seed") {
    if (test->outcome != Outcome::kFailed) test->seed = event.at(1);
  } else if (what == "failed" || what == "skipped") {
    const bool first = test->outcome == Outcome::kPassed;
    test->outcome = what == "failed" ? Outcome::kFailed : Outcome::kSkipped;
    if (first) test->message = event.at(1);
  }
}

// Follows one suite of a process, which has more of them if it `stays`; false: another one has to go
// on after the test that broke it.
Result<bool> RunOnce(Child& child, bool stays, const JudgeSettings& settings, SuiteResult* result) {
  const auto timeout = std::chrono::seconds(settings.timeout_s);
  const size_t before = result->tests.size();
  bool open = false, done = false;
  auto deadline = Clock::now() + timeout;
  for (Event event; !done && !(event = child.Next(deadline)).empty();) {
    const std::string& what = event[0];
    done = what == "done" || what == "absent" || what == "refused";
    if (what == "refused") return Status::Error(StatusCode::kPlugin, "%s", event.at(1).c_str());
    if (what == "absent") result->absent = event.at(1);
    if (what == "test") {
      result->tests.push_back({.suite = result->suite->name, .test = event.at(1)});
      deadline = Clock::now() + timeout;
    }
    if (what == "test" || what == "end") open = what == "test";
    if (result->tests.size() > before) Add(event, &result->tests.back());
  }
  if (done && stays) return true;
  const bool silent = !done && Clock::now() >= deadline;
  const std::string problem = child.End(silent, settings.timeout_s);
  if (problem.empty() && done) return true;
  const bool any = result->tests.size() > before;
  if (!open) result->tests.push_back({.suite = result->suite->name, .test = "TheProcess"});
  TestResult& broken = result->tests.back();
  if (!open) {
    broken.sentence = "The code of a plugin ends no process, whatever is called before and after.";
  }
  broken.outcome = Outcome::kFailed;
  broken.broke = true;
  broken.message = problem.empty() ? "it ended the process" : problem;
  return done || !any;
}

std::vector<std::string> CommandOf(const SuiteChoice& choice) {
  return {"--suite", choice.suite->name + (choice.test.empty() ? "" : "." + choice.test)};
}

void AddIfNothingRan(const JudgeSettings& settings, SuiteResult* result) {
  const auto ran = [](const TestResult& test) { return test.outcome != Outcome::kSkipped; };
  const bool may_be_absent = !result->absent.empty() && !settings.wanted;
  if (may_be_absent || std::ranges::any_of(result->tests, ran)) return;
  result->tests.push_back(
      {.suite = result->suite->name,
       .test = "RunsATest",
       .sentence = "A suite in which nothing ran has judged nothing.",
       .outcome = Outcome::kFailed,
       .message = result->absent.empty() ? "no test of the suite ran" : result->absent});
  result->absent.clear();
}

// Each suite in a process of its own, and after a test that breaks it the rest in another one.
Result<SuiteResult> JudgeAlone(const SuiteChoice& choice, const JudgeSettings& settings) {
  SuiteResult result{.suite = choice.suite};
  for (bool done = false; !done;) {
    std::vector<std::string> command = settings.command;
    command.push_back("--child");
    std::ranges::copy(CommandOf(choice), std::back_inserter(command));
    for (const TestResult& test : result.tests)
      command.insert(command.end(), {"--skip", test.test});
    Child child(command);
    ENGINE_ASSIGN_OR_RETURN(done, RunOnce(child, false, settings, &result));
  }
  AddIfNothingRan(settings, &result);
  return result;
}

}  // namespace

Result<std::vector<SuiteResult>> JudgeSuites(const std::vector<SuiteChoice>& choices,
                                             const JudgeSettings& settings) {
  std::vector<SuiteResult> results;
  if (!settings.launched) {
    for (const SuiteChoice& choice : choices) {
      ENGINE_ASSIGN_OR_RETURN(results.emplace_back(), JudgeAlone(choice, settings));
    }
    return results;
  }
  std::vector<std::string> command = settings.command;
  command.push_back("--child");
  for (const SuiteChoice& choice : choices) {
    std::ranges::copy(CommandOf(choice), std::back_inserter(command));
  }
  Child child(command);
  for (bool whole = true; const SuiteChoice& choice : choices) {
    SuiteResult& result = results.emplace_back(SuiteResult{.suite = choice.suite});
    if (!whole) {
      result.absent = "the process of this rank has ended, see above";
      continue;
    }
    const bool stays = &choice != &choices.back();
    ENGINE_RETURN_IF_ERROR(RunOnce(child, stays, settings, &result).status());
    AddIfNothingRan(settings, &result);
    const auto ended = [](const TestResult& test) { return test.broke; };
    whole = std::ranges::none_of(result.tests, ended);
  }
  return results;
}

}  // namespace engine::conform
