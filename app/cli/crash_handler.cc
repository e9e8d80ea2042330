#include "app/cli/crash_handler.h"

#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "app/launch/exit_code.h"
#include "app/launch/limits.h"
#include "app/launch/log.h"

namespace engine::cli {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// What a signal handler can reach is process-wide by nature: hence mutable statics.
constinit std::atomic<int> report_fd{2};
constinit std::atomic<pid_t> reporter{0};  // the first thread that crashed; it writes the line
constinit std::atomic<int> first_signal{0};

// What std::terminate was called for, or "".
constinit char exception_text[500] = {};

// Writing the line may wait for a lock or a reader.
constexpr unsigned kReportSeconds = 5;

constexpr std::string_view kPrefix = "libengine_", kSuffix = ".so";

// The path of the plugin whose code is at `address`, or "". _dl_find_object takes no lock, so it
// may be called in a signal handler, whatever another thread does in the dynamic linker.
std::string_view PluginAt(uintptr_t address) {
  dl_find_object found{};
  if (_dl_find_object(reinterpret_cast<void*>(address), &found) != 0) return "";
  const std::string_view path = found.dlfo_link_map->l_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  return file.starts_with(kPrefix) && file.ends_with(kSuffix) ? path : "";
}

uintptr_t InstructionPointer(const ucontext_t& context) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return context.uc_mcontext.pc;
#endif
}

// A line in fixed memory: only async-signal-safe calls are allowed here.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    length_ += text.copy(text_ + length_, sizeof text_ - length_);
    return *this;
  }
  Line& operator<<(int64_t number) {
    char digits[20];
    const char* const end = std::to_chars(digits, std::end(digits), number).ptr;
    return *this << std::string_view(digits, end);
  }
  void WriteTo(int fd) const { (void)!write(fd, text_, length_); }

 private:
  char text_[5000];  // two paths
  size_t length_ = 0;
};

// The file that is mapped at `address` into `buffer`, or "". A line of /proc/self/maps:
// BEGIN-END PERMISSIONS OFFSET DEVICE INODE   PATH
std::string_view MappedFileAt(uintptr_t address, std::span<char> buffer) {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t length = 0;
  for (char c; read(fd, &c, 1) == 1;) {
    if (c != '\n') {
      if (length < buffer.size()) buffer[length++] = c;
      continue;
    }
    const std::string_view line(buffer.data(), std::exchange(length, 0));
    uintptr_t begin = 0, end = 0;
    const char* next = std::from_chars(line.begin(), line.end(), begin, 16).ptr;
    std::from_chars(next + 1, line.end(), end, 16);
    const size_t path = line.find('/');
    if (begin <= address && address < end) return path < line.size() ? line.substr(path) : "";
  }
  return "";
}

// The error of a resource that the process has none left of, found by trying, or 0. Libraries that
// get none crash.
int MissingResource() {
  if (launch::MemoryIsOut()) return ENOMEM;
  const int fd = dup(report_fd.load());
  if (fd < 0) return errno == EMFILE ? EMFILE : 0;
  close(fd);
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) syscall(SYS_exit_group, 0);
  if (child < 0) return EAGAIN;
  waitpid(child, nullptr, 0);
  return 0;
}

// In which plugin, if any: that of the faulting instruction, else that of the nearest caller.
void AppendPlugin(uintptr_t fault, Line& line) {
  std::string_view plugin = PluginAt(fault);
  const bool direct = !plugin.empty();
  void* frames[64];
  const int depth = direct ? 0 : backtrace(frames, 64);
  for (int i = 0; i < depth && plugin.empty(); ++i) {
    // A return address is one past the call, which may be the last instruction of its function.
    plugin = PluginAt(reinterpret_cast<uintptr_t>(frames[i]) - 1);
  }
  if (plugin.empty()) {
    line << " outside of any plugin";
    return;
  }
  std::string_view name = plugin.substr(plugin.rfind('/') + 1 + kPrefix.size());
  name.remove_suffix(kSuffix.size());
  line << (direct ? " in plugin '" : " in code called by plugin '") << name << "' (" << plugin
       << ")";
}

// Writes the line. The exit code of what was not the fault of the code, else 0.
int Report(int number, uintptr_t address, uintptr_t fault) {
  Line line;
  char buffer[4200];
  const std::string_view file = number == SIGBUS ? MappedFileAt(address, buffer) : "";
  if (!file.empty() && !file.starts_with("/memfd:")) {
    (line << "engine: " << file << " became shorter while it was read (SIGBUS): replace files, do "
          << "not write into them\n")
        .WriteTo(report_fd.load());
    return launch::ExitCode(StatusCode::kMissingInput);
  }
  AppendPlugin(fault, line << "engine: crashed with SIG" << sigabbrev_np(number));
  line << exception_text;
  const int missing = MissingResource();
  if (missing != 0) line << " for want of a resource";
  for (const launch::Limit& limit : launch::kLimits) {
    if (limit.error != missing || launch::LimitOf(limit) < 0) continue;
    line << "; raise the limit of this process: " << launch::LimitOf(limit) << " " << limit.name
         << " (ulimit " << limit.flag << ")";
  }
  (line << "\n").WriteTo(report_fd.load());
  return missing == 0 ? 0 : launch::ExitCode(StatusCode::kResourceExhausted);
}

// Ends the process by the first signal, also where it is blocked or another thread has it.
void End(int) {
  const int number = first_signal.load();
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
}

// One thread writes the line and ends the process; others that crash meanwhile wait for that. When
// writing crashes itself or takes too long, the process ends without.
void OnCrash(int number, siginfo_t* info, void* context) {
  pid_t other = 0;
  if (!reporter.compare_exchange_strong(other, gettid())) {
    if (other == gettid()) End(number);
    for (;;) pause();
  }
  first_signal = number;
  signal(SIGALRM, End);
  alarm(kReportSeconds);
  const int exit_code = Report(number, reinterpret_cast<uintptr_t>(info->si_addr),
                               InstructionPointer(*static_cast<const ucontext_t*>(context)));
  if (exit_code != 0) _exit(exit_code);
  End(number);
}

// In place of lines of the C++ library, for the one line of the crash.
[[noreturn]] void OnTerminate() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    std::snprintf(exception_text, sizeof(exception_text), ": an exception that nobody catches: %s",
                  launch::PrintableLine(error.what()).c_str());
  } catch (...) {
    std::strcpy(exception_text, ": an exception that nobody catches");
  }
  std::abort();
}

}  // namespace

Status InstallCrashHandler(int fd) {
  static constinit char stack[256 << 10] = {};  // unwinding needs far more than SIGSTKSZ
  const stack_t alternate{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
  if (sigaltstack(&alternate, nullptr) != 0) {
    return Status::Error(StatusCode::kInternal, "no stack for the crash handler: %s",
                         std::strerror(errno));
  }
  report_fd.store(fd);
  std::set_terminate(OnTerminate);
  // The first call loads the unwinder, which a signal handler must not do.
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action {};
  action.sa_sigaction = OnCrash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int number : kSignals) {
    if (sigaction(number, &action, nullptr) == 0) continue;
    return Status::Error(StatusCode::kInternal, "no handler for SIG%s: %s", sigabbrev_np(number),
                         std::strerror(errno));
  }
  return {};
}

}  // namespace engine::cli
