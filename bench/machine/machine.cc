#include "bench/machine/machine.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>

namespace engine::bench {
namespace {

constexpr const char* kUnknown = "unknown";

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) && !line.empty() ? line : kUnknown;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return kUnknown;
}

int UsableCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::string Kernel() {
  utsname name{};
  if (uname(&name) != 0) return kUnknown;
  return std::string(name.sysname) + " " + name.release + " " + name.machine;
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

bool IsPlain(const std::string& word) {
  return !word.empty() && word.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              "_-+=./:,@%") == std::string::npos;
}

}  // namespace

Machine DescribeMachine(const std::string& engine_version, const std::string& command_line) {
  Machine machine;
  machine.cpu = CpuModel();
  machine.cores = UsableCores();
  machine.kernel = Kernel();
  machine.congestion = FirstLine("/proc/sys/net/ipv4/tcp_congestion_control");
  machine.memory_gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(sysconf(_SC_PAGESIZE)) / (1u << 30);
  if (getloadavg(&machine.load, 1) != 1) machine.load = 0;
  machine.engine = engine_version;
  machine.command_line = command_line;
  machine.time = Now();
  return machine;
}

std::string ShellWords(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (IsPlain(word)) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

}  // namespace engine::bench
