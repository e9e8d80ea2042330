#include "app/cli/crash_handler.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace engine::cli {
namespace {

constexpr struct {
  int number;
  const char* name;
} kSignals[] = {{SIGSEGV, "SIGSEGV"},
                {SIGBUS, "SIGBUS"},
                {SIGFPE, "SIGFPE"},
                {SIGILL, "SIGILL"},
                {SIGABRT, "SIGABRT"}};

// What a signal handler can reach is process-wide by nature: hence mutable statics.
constinit std::atomic<int> report_fd{2};
constinit std::atomic_flag reported = ATOMIC_FLAG_INIT;

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
  void WriteTo(int fd) const { (void)!write(fd, text_, length_); }

 private:
  char text_[1024];
  size_t length_ = 0;
};

void Report(const char* signal_name, uintptr_t fault) {
  std::string_view plugin = PluginAt(fault);
  const bool direct = !plugin.empty();
  void* frames[64];
  const int depth = direct ? 0 : backtrace(frames, 64);
  for (int i = 0; i < depth && plugin.empty(); ++i) {
    // A return address is one past the call, which may be the last instruction of its function.
    plugin = PluginAt(reinterpret_cast<uintptr_t>(frames[i]) - 1);
  }
  Line line;
  line << "engine: crashed with " << signal_name;
  if (plugin.empty()) {
    line << " outside of any plugin";
  } else {
    std::string_view name = plugin.substr(plugin.rfind('/') + 1 + kPrefix.size());
    name.remove_suffix(kSuffix.size());
    line << (direct ? " in plugin '" : " in code called by plugin '") << name << "' (" << plugin
         << ")";
  }
  (line << "\n").WriteTo(report_fd.load());
}

void OnCrash(int number, siginfo_t*, void* context) {
  if (reported.test_and_set()) {
    // Another thread is writing the line, and ends the process when it has.
    for (;;) pause();
  }
  const char* name = "a signal";
  for (const auto& signal : kSignals) {
    if (signal.number == number) name = signal.name;
  }
  Report(name, InstructionPointer(*static_cast<const ucontext_t*>(context)));
  // SA_RESETHAND has restored the default action; the signal is delivered when this returns.
  raise(number);
}

Status InstallAlternateStack() {
  const size_t size = 256 * 1024;  // unwinding needs far more than SIGSTKSZ
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = size;
  // Given to the thread for the rest of the process.
  if (memory == MAP_FAILED || sigaltstack(&stack, nullptr) != 0) {
    return Status::Error(StatusCode::kInternal, "no stack for the crash handler: %s",
                         std::strerror(errno));
  }
  return {};
}

}  // namespace

Status InstallCrashHandler(int fd) {
  ENGINE_RETURN_IF_ERROR(InstallAlternateStack());
  report_fd.store(fd);
  // The first call loads the unwinder, which a signal handler must not do.
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action {};
  action.sa_sigaction = OnCrash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  for (const auto& signal : kSignals) {
    if (sigaction(signal.number, &action, nullptr) != 0) {
      return Status::Error(StatusCode::kInternal, "no handler for %s: %s", signal.name,
                           std::strerror(errno));
    }
  }
  return {};
}

}  // namespace engine::cli
