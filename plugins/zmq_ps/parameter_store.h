// Requests about parameters at a server: between sessions and the table.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "offload.h"
#include "session.h"
#include "table.h"

namespace engine::zmq_ps {

// All of the server's thread.
class ParameterStore {
 public:
  // `traits` null: this server reduces only, and refuses. Borrows `sessions`, one per rank, and
  // `offload`.
  ParameterStore(const std::optional<ParameterTraits>& traits, std::vector<Session>& sessions,
                 Offload& offload)
      : traits_(traits), sessions_(sessions), offload_(offload) {}

  // A new request of its session.
  void Handle(PendingRequest& pending, Message& message);

  // From now on; what came before waits for it. Only with traits, and once.
  void Start(Optimizer& optimizer);
  bool started() const noexcept { return table_ != nullptr; }
  // Hands out updates that are due, and answers pulls that can be.
  void Advance();

  void RankLeft(uint32_t worker);
  void RankJoined(uint32_t worker);
  // The ranks that a request waits for; none where it waits for this server.
  std::vector<uint32_t> Missing(const Header& request) const;

 private:
  void Ask(PendingRequest& pending);
  Status AskTable(PendingRequest& pending);
  Status CheckBuckets(uint32_t worker, uint64_t digest);
  std::optional<Status> FindLost(const Header& header) const;
  void RefuseLost();

  const std::optional<ParameterTraits> traits_;
  std::vector<Session>& sessions_;
  Offload& offload_;
  std::unique_ptr<Table> table_;                          // null while it has no optimizer
  std::optional<std::pair<uint32_t, uint64_t>> buckets_;  // who registered first, and its digest
};

}  // namespace engine::zmq_ps
