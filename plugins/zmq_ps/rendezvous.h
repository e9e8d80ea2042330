// How the ranks and servers of a run find each other, through the store of their Host.
#pragma once

#include <cstdint>
#include <string>

#include "curve.h"
#include "engine/host.h"
#include "kit/communicator.h"
#include "server.h"
#include "worker.h"

namespace engine::zmq_ps {

struct RendezvousSettings {
  int64_t servers = 0;  // ranks 0 .. servers-1 host one; 0: all ranks. 0 where there are servers of
                        // their own (RankInfo::servers), which leave none to ranks
  std::string interface;
  std::string hostname;
  bool encrypt = false;  // also on loopback
  int64_t timeout_ms = 30000;
};

// Two rounds, below a prefix of the store for each communicator that a run creates:
//
//   <n>/worker/<rank>  := public key of the rank, or "-"
//   <n>/renewed/<rank> := the same of the newest process that took the place of a lost one
//   <n>/server/<index> := endpoint ' ' public key or "-"     of servers, or of ranks that host one
//
// Every process makes its own keys and publishes the public ones; a server starts when it knows
// those of all ranks. Addresses other than loopback are always encrypted.
class Rendezvous {
 public:
  Rendezvous(Host& host, RendezvousSettings settings);

  // Chooses address and keys, publishes, and waits for the keys of all ranks, unless they concern
  // servers of their own only. Then `server` has endpoint, keys and worker_keys filled in.
  Status Meet(ServerSettings* server);
  // Publishes the server of this member, if it has one.
  Status Publish(const Server& server);
  // Waits for all servers, and fills in servers and keys of `worker`.
  Status FindServers(WorkerSettings* worker);

  bool hosts_server() const noexcept {
    return members_serve() ? ranks_.is_server != 0 : ranks_.rank < servers_;
  }
  kit::Clock::time_point deadline() const noexcept { return deadline_; }

 private:
  bool members_serve() const noexcept { return ranks_.servers > 0; }
  Status ChooseAddress();
  Status TakeWorkerKeys(ServerSettings* server);
  Result<std::string> Fetch(const char* role, int index);
  Status Missing(const char* role, int first);
  Status CheckEncryption(const std::string& other, const std::string& key, int32_t blamed) const;
  std::string Key(const char* role, int index) const;

  Host& host_;
  const RendezvousSettings settings_;
  const RankInfo ranks_;
  const int servers_;
  const kit::Clock::time_point deadline_;
  std::string prefix_;
  std::string address_;
  bool encrypted_ = false;
  KeyPair worker_keys_;  // empty in plain text
  KeyPair server_keys_;
};

// The address to bind to: of an interface, of a name, or of this host's name; numeric, IPv6 in
// brackets. kConfig when there is none.
Result<std::string> FindAddress(const std::string& interface, const std::string& hostname);

}  // namespace engine::zmq_ps
