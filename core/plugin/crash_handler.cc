#include "core/plugin/crash_handler.h"

#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace engine {
namespace {

constexpr struct {
  int number;
  const char* name;
} kSignals[] = {{SIGSEGV, "SIGSEGV"},
                {SIGBUS, "SIGBUS"},
                {SIGFPE, "SIGFPE"},
                {SIGILL, "SIGILL"},
                {SIGABRT, "SIGABRT"}};

struct CodeRange {
  std::atomic<bool> ready{false};
  uintptr_t begin = 0, end = 0;
  char name[33] = {};
  char path[512] = {};
};

// What a signal handler can reach is process-wide by nature, as are loaded libraries: hence
// mutable statics. Ranges are appended and never change: a slot is claimed by
// counting up and readable once `ready`, which publishes its other fields to the handler.
constexpr int kMostRanges = 256;
constinit CodeRange ranges[kMostRanges];
constinit std::atomic<int> claimed_ranges{0};
constinit std::atomic<int> report_fd{2};
constinit std::atomic_flag reported = ATOMIC_FLAG_INIT;

const CodeRange* FindRange(uintptr_t address) {
  const int count = std::min(claimed_ranges.load(), kMostRanges);
  for (int i = 0; i < count; ++i) {
    const CodeRange& range = ranges[i];
    if (range.ready.load(std::memory_order_acquire) && address >= range.begin &&
        address < range.end) {
      return &range;
    }
  }
  return nullptr;
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
  Line& operator<<(const char* text) {
    const size_t length = std::min(std::strlen(text), sizeof text_ - length_);
    std::memcpy(text_ + length_, text, length);
    length_ += length;
    return *this;
  }
  void WriteTo(int fd) const {
    for (size_t done = 0; done < length_;) {
      const ssize_t wrote = write(fd, text_ + done, length_ - done);
      if (wrote <= 0) return;
      done += static_cast<size_t>(wrote);
    }
  }

 private:
  char text_[1024];
  size_t length_ = 0;
};

void Report(const char* signal_name, uintptr_t fault) {
  const CodeRange* range = FindRange(fault);
  const bool direct = range != nullptr;
  void* frames[64];
  const int depth = direct ? 0 : backtrace(frames, 64);
  for (int i = 0; i < depth && range == nullptr; ++i) {
    // A return address is one past the call, which may be the last instruction of its function.
    range = FindRange(reinterpret_cast<uintptr_t>(frames[i]) - 1);
  }
  Line line;
  line << "engine: crashed with " << signal_name;
  if (range != nullptr) {
    line << (direct ? " in plugin '" : " in code called by plugin '") << range->name << "' ("
         << range->path << ")";
  } else {
    line << " outside of any plugin";
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

struct Search {
  uintptr_t address, begin, end;
};

int VisitLibrary(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    begin = std::min<uintptr_t>(begin, info->dlpi_addr + segment.p_vaddr);
    end = std::max<uintptr_t>(end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
  }
  if (search->address < begin || search->address >= end) return 0;
  search->begin = begin;
  search->end = end;
  return 1;
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

void RegisterPluginCode(const std::string& name, const std::string& path, const void* address) {
  Search search{reinterpret_cast<uintptr_t>(address), 0, 0};
  if (FindRange(search.address) != nullptr) return;
  if (dl_iterate_phdr(VisitLibrary, &search) == 0) return;
  const int slot = claimed_ranges.fetch_add(1);
  if (slot >= kMostRanges) return;  // the crash of such a plugin is reported without its name
  CodeRange& range = ranges[slot];
  range.begin = search.begin;
  range.end = search.end;
  std::snprintf(range.name, sizeof range.name, "%s", name.c_str());
  std::snprintf(range.path, sizeof range.path, "%s", path.c_str());
  range.ready.store(true, std::memory_order_release);
}

}  // namespace engine
