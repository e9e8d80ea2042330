#include "tests/emulated_cuda/nccl/faults.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace fake_nccl {
namespace {

bool ParseAt(const std::string& fault, const char* name, At* at) {
  const std::string pattern = std::string(name).append("=%d@%lld");
  long long call = -1;
  if (std::sscanf(fault.c_str(), pattern.c_str(), &at->rank, &call) != 2) return false;
  at->call = call;
  return true;
}

bool Parse(const std::string& fault, Faults* faults) {
  if (std::sscanf(fault.c_str(), "version=%d", &faults->version) == 1) return true;
  if (std::sscanf(fault.c_str(), "policy=%d", &faults->policy) == 1) return true;
  if (fault == "init") return faults->init = true;
  if (fault == "split") return faults->split = true;
  if (fault == "group") return faults->group = true;
  if (fault == "busy") return faults->busy = true;
  if (fault == "memory") return faults->memory = true;
  return ParseAt(fault, "absent", &faults->absent) || ParseAt(fault, "error", &faults->error) ||
         ParseAt(fault, "remote", &faults->remote) || ParseAt(fault, "refuse", &faults->refuse);
}

}  // namespace

Faults ReadFaults() {
  Faults faults;
  const char* const text = std::getenv("FAKE_NCCL_FAULT");
  if (text == nullptr) return faults;
  std::istringstream stream(text);
  for (std::string fault; std::getline(stream, fault, ',');) {
    if (fault.empty() || Parse(fault, &faults)) continue;
    std::fprintf(stderr, "fake NCCL: unknown fault '%s'\n", fault.c_str());
    std::abort();
  }
  return faults;
}

}  // namespace fake_nccl
