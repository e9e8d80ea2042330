// How the ranks and servers of a run find each other, through the store of their Host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/host.h"
#include "keys.h"
#include "kit/communicator.h"
#include "kit/rendezvous.h"
#include "server.h"
#include "worker.h"

namespace engine::zmq_ps {

// What the options of zmq_ps say.
struct CommunicatorSettings {
  int64_t servers = 0;  // ranks 0 .. servers-1 host one; 0: all ranks. 0 where there are servers of
                        // their own (RankInfo::servers), which leave none to ranks
  std::string interface;
  std::string hostname;
  bool encrypt = false;         // also on loopback
  std::string update = "auto";  // the option of that name
  int32_t staleness = 1;        // kBounded
  int reduce_threads = 1;
  ConnectionSettings connection;

  // Null: servers add up only.
  std::optional<ParameterTraits> UpdateFor(const RankInfo& ranks) const;
};

// Two all-gathers of all members, ranks first and then servers of their own, below a prefix of the
// store for each communicator that a run creates:
//
//   <n>/keys/<member>    := "curve " | "plain ", and its public key
//   <n>/servers/<member> := [ endpoint ]     of members that have a server
//   <n>/renewed/<rank>   := the key of the newest process that took the place of a lost one
//
// Every process makes its own keys and publishes the public one, as a rank and as a server; a
// server starts when it knows those of all ranks. Addresses other than loopback are always
// encrypted.
class Rendezvous {
 public:
  Rendezvous(Host& host, const CommunicatorSettings& settings);

  // Chooses address and keys, publishes, and waits for all members. What the server of this member
  // is started with, if it has one.
  Result<ServerSettings> Meet();
  // Publishes the server of this member; null: it has none.
  Status Publish(const Server* server);
  // Waits for all servers.
  Result<WorkerSettings> FindServers();

  bool hosts_server() const noexcept {
    return members_serve() ? ranks_.is_server != 0 : ranks_.rank < servers_;
  }
  kit::Clock::time_point deadline() const noexcept { return deadline_; }

 private:
  bool members_serve() const noexcept { return ranks_.servers > 0; }
  Status ChooseAddress();
  Status ChoosePrefix();
  Result<kit::Values> Gather(const char* topic);
  const char* mode() const noexcept { return encrypted_ ? "curve " : "plain "; }
  // Takes the word for the mode off the key of a member.
  Status CheckMode(size_t member);
  KeyLookup RenewedKeys() const;

  Host& host_;
  const CommunicatorSettings& settings_;
  const RankInfo ranks_;
  const int servers_;
  const kit::Clock::time_point deadline_;
  kit::Members members_;
  std::string address_;
  bool encrypted_ = false;
  KeyPair own_keys_;
  kit::Values keys_;  // the public ones, by member
};

}  // namespace engine::zmq_ps
