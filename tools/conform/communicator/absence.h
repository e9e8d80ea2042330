// Which suites are not for the communicator under test, and why: for Suite::absent.
#pragma once

#include <string>
#include <string_view>

namespace engine::conform {

std::string NothingFails();
std::string NoProcesses();
std::string NoRecordedTransfers();
std::string NoParameterServer();

// Of a group of `least` ranks, or more where a launcher or -n has them.
std::string NotOffered(int least, std::string_view id);
template <typename Extension, int kLeast>
std::string NotOffered() {
  return NotOffered(kLeast, Extension::kId);
}

}  // namespace engine::conform
