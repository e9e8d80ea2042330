// A run with servers, whose members are threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <ostream>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "tools/conform/subject.h"

namespace engine::conform {

// Where the servers are.
struct ServedCase {
  int servers = 0;  // members of their own; 0: the servers are parts of the ranks
};

inline std::ostream& operator<<(std::ostream& out, const ServedCase& served) {
  if (served.servers == 0) return out << "inside";
  return out << served.servers << "_members";
}

// One run. Outlives its communicators. Thread-safe.
class ServedWorld {
 public:
  ServedWorld(const ServedCase& served, int ranks) : served_(served), ranks_(ranks) {}

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
    MemoryHost* host = nullptr;
    {
      const std::lock_guard lock(mutex_);
      hosts_.push_back(std::make_unique<MemoryHost>(info, store_));
      host = hosts_.back().get();
    }
    return UnderTest().plugin.Create<Communicator>(*host);
  }

  const ServedCase served_;
  const int ranks_;
  const std::shared_ptr<MemoryStoreTable> store_ = std::make_shared<MemoryStoreTable>();
  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryHost>> hosts_;  // guarded by mutex_
};

}  // namespace engine::conform
