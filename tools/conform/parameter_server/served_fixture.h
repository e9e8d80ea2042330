// The tests of a communicator with servers, for each place where servers may be.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <ostream>

#include "engine/ext/parameter_server.h"

namespace engine::conform {

// Where the servers are.
struct ServedCase {
  int servers = 0;  // members of their own; 0: the servers are parts of the ranks
};

inline std::ostream& operator<<(std::ostream& out, const ServedCase& served) {
  if (served.servers == 0) return out << "inside";
  return out << served.servers << "_members";
}

// Nothing where the library offers no ParameterClient. Asks it once.
std::optional<UpdateMode> ModeOf(const ServedCase& served);

// Sets of UpdateMode.
constexpr uint32_t kSyncMode = 1, kBoundedMode = 2, kAsyncModes = 6, kAllModes = 7;

// Of libraries in one of `modes`; with so many servers of their own at least: without any a rank
// that ends takes parameters with it.
template <uint32_t modes, int least_servers = 0>
class Served : public testing::TestWithParam<ServedCase> {
 protected:
  void SetUp() override {
    if (GetParam().servers < least_servers) GTEST_SKIP() << "for servers of their own";
    const std::optional<UpdateMode> found = ModeOf(GetParam());
    if (!found) GTEST_SKIP() << "with servers " << GetParam() << " it offers no ParameterClient";
    mode_ = *found;
    if ((modes >> static_cast<int>(mode_) & 1) == 0) {
      GTEST_SKIP() << "not for ParameterTraits::mode " << Name(mode_);
    }
  }
  UpdateMode mode() const { return mode_; }

 private:
  UpdateMode mode_ = UpdateMode::kSync;
};

inline const auto kLayouts = testing::Values(ServedCase{0}, ServedCase{2});
#define SERVED_SUITE(name) \
  INSTANTIATE_TEST_SUITE_P(Of, name, kLayouts, testing::PrintToStringParamName())

}  // namespace engine::conform
