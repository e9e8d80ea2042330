// What is judged: communicators that offer ParameterClient, and how members of a run get theirs.
#pragma once

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "tests/conformance/plugin_under_test.h"

namespace engine::test {

struct RunShape {
  int ranks = 2;
  int servers = 0;  // members of their own; 0: the servers are parts of the ranks
};

// One run, whose members are threads. Outlives its communicators. Thread-safe.
class ServedWorld {
 public:
  virtual ~ServedWorld() = default;
  virtual Result<std::unique_ptr<Communicator>> MakeRank(int rank, int incarnation) = 0;
  virtual Result<std::unique_ptr<Communicator>> MakeServer(int index) = 0;
};

// Something to judge, in one update mode and one layout of servers.
struct ServedCase {
  std::string name;
  UpdateMode mode = UpdateMode::kSync;
  int servers = 0;
  std::string library;                // empty: the fake of tests/fakes
  OptionValues::Overrides overrides;  // of the library's options; they choose the mode

  std::unique_ptr<ServedWorld> MakeWorld(int ranks) const;
};

inline void PrintTo(const ServedCase& served, std::ostream* out) {
  *out << served.name;
}

// The staleness of the fake in mode kBounded; a library says its own (ParameterTraits).
constexpr int32_t kFakeStaleness = 2;

// The fake, in every mode and layout.
std::vector<ServedCase> FakeCases();

// Takes what this suite understands from the command line (see main.cc), or says what is wrong.
// Without --plugin: the cases of the fake, and the default ones of this build.
Result<std::vector<ServedCase>> CasesFromCommandLine(int* argc, char** argv);

// What main() has found; the cases of one mode, or of all.
void SetCases(std::vector<ServedCase> cases);
std::vector<ServedCase> AllServedCases();
std::vector<ServedCase> CasesOf(UpdateMode mode);
std::vector<ServedCase> AsyncCases();  // bounded, async
// ... of these, the ones where a rank may end without taking parameters with it: the servers are
// members of their own (or the fake).
std::vector<ServedCase> CasesThatOutliveRanks();
std::vector<ServedCase> CasesWithServers();  // members of their own

}  // namespace engine::test
