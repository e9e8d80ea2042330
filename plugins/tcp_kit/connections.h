// Connections between ranks: made when a lane first needs one. Every rank listens on one port,
// which it publishes:
//
//   address ' ' port ' ' lanes ' ' token ' ' fingerprint         token, fingerprint: see handshake.h
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/host.h"
#include "engine/status.h"
#include "kit/rendezvous.h"
#include "tcp_kit/acceptor.h"
#include "tcp_kit/handshake.h"
#include "tcp_kit/socket.h"

namespace engine::tcp {

struct NetworkSettings {
  const char* plugin = "";  // for messages
  int lanes = 1;
  int send_buffer_bytes = 0;       // what a socket must take without a wait; 0: the kernel decides
  std::string interface;           // name of a network interface, or empty
  std::string hostname;            // own name or address, or empty
  std::string congestion_control;  // of the kernel; empty: cubic on loopback, else the host's
  std::string key_file;            // path, or empty
};

class Connections {
 public:
  // Collective, with a deadline; a world of one has no lanes. kRendezvous names the ranks that are missing; kConfig when the
  // settings name no usable address, or differ from those of another rank.
  static Result<std::unique_ptr<Connections>> Open(Host& host, const NetworkSettings& settings);
  ~Connections();

  const RankInfo& ranks() const noexcept { return ranks_; }
  int lanes() const noexcept { return ranks_.world_size > 1 ? settings_.lanes : 0; }
  const std::string& prefix() const noexcept { return rendezvous_.prefix(); }

  // The socket of `lane` to `peer`, which lives as long as this object; the first call makes the
  // connection, without a limit of time. kPeerLost, with the peer, when that is gone or Shutdown
  // was called. [any-thread, one at a time for a lane]
  Result<int> Get(int lane, int peer) noexcept;

  // Ends all waits, in Get and on the sockets. [any-thread]
  void Shutdown() noexcept;

 private:
  struct Peer {
    Endpoint endpoint;
    std::optional<Key> key;
  };

  struct Slot {
    kit::UniqueFd socket;     // once valid, it stays
    bool connecting = false;  // by this rank
    bool taken = false;       // a hello of the peer; its socket follows
  };

  Connections(Host& host, const NetworkSettings& settings);

  Status Run();
  // *record: what this rank publishes.
  Status StartListening(std::string* record);
  Status ReadRecord(int peer, const std::string& record);
  // *socket stays invalid when the peer connects.
  Status ConnectTo(int peer, int lane, kit::UniqueFd* socket);
  void Take(const Hello& hello, kit::UniqueFd socket) noexcept;
  Slot& SlotOf(int lane, int peer) noexcept;

  // Constant after Open.
  const NetworkSettings settings_;
  const RankInfo ranks_;
  kit::Rendezvous rendezvous_;
  std::string key_file_;  // its content
  SocketSettings socket_settings_;
  std::optional<Key> key_;  // of this rank
  std::vector<Peer> peers_;
  kit::UniqueFd stop_;  // an eventfd: readable from Shutdown on

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;  // by lane and peer; these two guarded by mutex_
  bool stopped_ = false;

  std::unique_ptr<Acceptor> acceptor_;  // uses all of the above
};

}  // namespace engine::tcp
