// parameter_server_conformance [--plugin=PATH [--options=N=V,...] [--servers=0,2]
//     [--sync=N=V,...] [--bounded=N=V,...] [--async=N=V,...]] [--gtest_...]
//
// --sync, --bounded and --async give the options that choose the mode; one that is not given is not
// tested. --servers: numbers of members that are servers, 0 for servers inside of the ranks.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/conformance/parameter_server/served_world.h"

int main(int argc, char** argv) {
  auto cases = engine::test::CasesFromCommandLine(&argc, argv);
  if (!cases.ok()) {
    std::fprintf(stderr, "%s\n", cases.status().message());
    return 2;
  }
  engine::test::SetCases(std::move(*cases));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
