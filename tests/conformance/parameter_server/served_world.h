// What is judged: communicators that offer ParameterClient, and how members of a run get theirs.
#pragma once

#include <initializer_list>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/memory_host.h"

namespace engine::test {

// Something to judge, in one update mode and one layout of servers.
struct ServedCase {
  std::string name;
  UpdateMode mode = UpdateMode::kSync;
  int servers = 0;  // members of their own; 0: the servers are parts of the ranks
  std::string library;
  OptionValues::Overrides overrides;  // of the library's options; they choose the mode
};

inline void PrintTo(const ServedCase& served, std::ostream* out) {
  *out << served.name;
}

// One run, whose members are threads. Outlives its communicators. Thread-safe.
class ServedWorld {
 public:
  ServedWorld(const PluginUnderTest& plugin, const ServedCase& served, int ranks)
      : plugin_(plugin), served_(served), ranks_(ranks) {}

  Result<std::unique_ptr<Communicator>> MakeRank(int rank, int incarnation) {
    return Make({.rank = rank,
                 .world_size = ranks_,
                 .local_rank = rank,
                 .local_world_size = ranks_,
                 .servers = served_.servers,
                 .incarnation = incarnation});
  }
  Result<std::unique_ptr<Communicator>> MakeServer(int index) {
    return Make({.rank = index,
                 .world_size = ranks_,
                 .local_world_size = ranks_,
                 .servers = served_.servers,
                 .is_server = 1});
  }

 private:
  Result<std::unique_ptr<Communicator>> Make(const RankInfo& info) {
    Host* host = nullptr;
    {
      const std::lock_guard lock(mutex_);
      hosts_.push_back(std::make_unique<MemoryHost>(info, store_));
      host = hosts_.back().get();
    }
    return plugin_.Create<Communicator>(*host, served_.overrides);
  }

  const PluginUnderTest plugin_;
  const ServedCase served_;
  const int ranks_;
  const std::shared_ptr<MemoryStoreTable> store_ = std::make_shared<MemoryStoreTable>();
  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryHost>> hosts_;  // guarded by mutex_
};

inline constexpr auto kAllModes = {UpdateMode::kSync, UpdateMode::kBounded, UpdateMode::kAsync};
inline constexpr auto kAsyncModes = {UpdateMode::kBounded, UpdateMode::kAsync};

// What main() has found.
void SetCases(std::vector<ServedCase> cases);
// Those of some modes, with so many servers of their own at least: without any a rank that ends
// takes parameters with it.
std::vector<ServedCase> CasesOf(std::initializer_list<UpdateMode> modes, int least_servers = 0);

}  // namespace engine::test
