#include "tests/emulated_cuda/cudart/faults.h"

#include <cstdlib>
#include <regex>
#include <sstream>

#include "tests/emulated_cuda/cudart/fail.h"

namespace emulated_cuda {

Faults::Faults(const char* text) {
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) faults_.push_back(Parse(part));
}

Faults::Fault Faults::Parse(const std::string& text) {
  static const std::regex form("([A-Za-z0-9_]+):([0-9]+)(\\+?)=([0-9]+)");
  std::smatch match;
  if (!std::regex_match(text, match, form)) {
    Fail("EMULATED_CUDA_FAULT has '%s': must be <function>:<call>=<code>", text.c_str());
  }
  return {.function = match[1],
          .call = std::strtoul(match[2].str().c_str(), nullptr, 10),
          .later = match[3].length() > 0,
          .code = std::atoi(match[4].str().c_str())};
}

int Faults::Next(const char* function) {
  if (faults_.empty()) return 0;
  std::lock_guard lock(mutex_);
  const unsigned long call = ++calls_[function];
  for (const Fault& fault : faults_) {
    const bool now = fault.later ? call >= fault.call : call == fault.call;
    if (now && fault.function == function) return fault.code;
  }
  return 0;
}

}  // namespace emulated_cuda
