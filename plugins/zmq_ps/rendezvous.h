// How the ranks of a run find each other's servers, through the store of their Host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "curve.h"
#include "engine/host.h"
#include "server.h"
#include "worker.h"

namespace engine::zmq_ps {

struct RendezvousSettings {
  int64_t servers = 0;  // ranks 0 .. servers-1 host one; 0: all ranks
  std::string interface;
  std::string hostname;
  bool encrypt = false;  // also on loopback
  int64_t timeout_ms = 30000;
};

// Two rounds, in a numbered space of the store for each communicator that a run creates:
//
//   <n>/worker/<rank> := public key of the rank's worker, or "-"
//   <n>/server/<rank> := endpoint ' ' public key or "-"     of ranks that host a server
//
// Every process makes its own keys and publishes the public ones; a server starts when it knows
// those of all workers. Addresses other than loopback are always encrypted.
class Rendezvous {
 public:
  Rendezvous(Host& host, RendezvousSettings settings);

  // Chooses address and keys, publishes, and waits for the keys of all ranks. Then `server` has
  // endpoint, keys and worker_keys filled in.
  Status Meet(ServerSettings* server);
  // Publishes this rank's server, if it has one, waits for those of all that host one, and fills in
  // servers and keys of `worker`.
  Status Exchange(const Server* server, WorkerSettings* worker);

  bool hosts_server() const noexcept { return ranks_.rank < servers_; }
  Clock::time_point deadline() const noexcept { return deadline_; }

 private:
  Status ChooseSpace();
  Status Publish(const std::string& role, const std::string& value);
  Result<std::string> Fetch(const std::string& role, int rank);
  Status Missing(const std::string& role, int rank);
  std::string Key(const std::string& role, int rank) const;

  Host& host_;
  const RendezvousSettings settings_;
  const RankInfo ranks_;
  const int servers_;
  const Clock::time_point deadline_;
  std::string space_;
  std::string address_;
  KeyPair worker_keys_;  // empty in plain text
  KeyPair server_keys_;
};

// The address to bind to: of an interface, of a name, or of this host's name; numeric, IPv6 in
// brackets. kConfig when there is none.
Result<std::string> FindAddress(const std::string& interface, const std::string& hostname);

}  // namespace engine::zmq_ps
