// What the engine lends to a plugin. A plugin reads no environment, prints nothing and starts no
// logger: it asks its Host. A Host outlives every object created with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/device.h"
#include "engine/status.h"

namespace engine {

enum class LogLevel : int32_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Who this member of the run is: a rank, or a server. Ranks of one host have local ranks
// 0 .. local_world_size-1.
struct RankInfo {
  uint64_t struct_size = sizeof(RankInfo);
  int32_t rank = 0;        // of a server: its index, 0 .. servers-1
  int32_t world_size = 1;  // ranks; servers are not among them
  int32_t local_rank = 0;
  int32_t local_world_size = 1;  // ranks on this host
  int32_t servers = 0;      // members that train nothing and serve the ranks: parameter_server.h
  uint32_t is_server = 0;   // 1: this is one of them
  uint32_t one_host = 1;    // 1: all members are on this host, so loopback reaches them
  int32_t incarnation = 0;  // how many had this rank before and died
  // The deadlines of the run, as its configuration says: how long members may take to meet (a create
  // function that waits for others, which fails with kRendezvous then), and how long a transfer may
  // go without progress.
  int64_t rendezvous_timeout_ms = 30000;
  int64_t transfer_timeout_ms = 30000;
};
ENGINE_LAYOUT(RankInfo, struct_size, rank, world_size, local_rank, local_world_size, servers,
              is_server, one_host, incarnation, rendezvous_timeout_ms, transfer_timeout_ms);

// How Status::rank() names server `index`; -1 names nobody.
constexpr int32_t ServerId(int32_t index) noexcept {
  return -2 - index;
}
// The server that a Status names, or -1.
constexpr int32_t ServerOfId(int32_t rank) noexcept {
  return rank <= -2 ? -2 - rank : -1;
}
ENGINE_INTERFACE(Host, Object, "engine.host.draft/1", rank_info, device, Log, Metric, StoreSet,
                 StoreGet, StoreHas);
class HostBase : public Implements<Host> {
 public:
  virtual RankInfo rank_info() const noexcept = 0;  // [any-thread]

  // The device of the op plugin; the CPU's in a run without accelerators. Null while plugins are
  // created before the op plugin (they are created in the order ops, communicator, optimizer,
  // hooks, scheduler). [any-thread]
  virtual Device* device() const noexcept = 0;

  // One line, without newline; the core adds rank and plugin name. [any-thread]
  virtual void Log(LogLevel level, std::string_view message) noexcept = 0;

  // A named number for the metrics file (JSON lines), which is that of rank 0: of other ranks it is
  // dropped. [any-thread]
  virtual void Metric(std::string_view name, double value) noexcept = 0;

  // Key-value store shared by all ranks, for rendezvous. Keys are private to the plugin's name. A
  // key is set once; setting it again replaces it. kPeerLost when the run is being aborted.
  // [any-thread]
  virtual Status StoreSet(std::string_view key, std::span<const uint8_t> value) noexcept = 0;

  // Waits until `key` exists, at most `timeout_ms`, then calls sink(context, data, size) once
  // before it returns. kTimeout names the key; kAborted or kPeerLost when the run is being aborted.
  // [any-thread]
  virtual Status StoreGet(std::string_view key, int64_t timeout_ms,
                          void (*sink)(void* context, const uint8_t* data, uint64_t size),
                          void* context) noexcept = 0;

  // Sets *exists to 1 if `key` is there now, else to 0. [any-thread]
  virtual Status StoreHas(std::string_view key, uint32_t* exists) noexcept = 0;
};

// StoreGet into a string of the caller's own library.
inline Status StoreGetString(Host& host, std::string_view key, int64_t timeout_ms,
                             std::string* out) noexcept {
  const auto assign = [](void* context, const uint8_t* data, uint64_t size) {
    static_cast<std::string*>(context)->assign(reinterpret_cast<const char*>(data), size);
  };
  return host.StoreGet(key, timeout_ms, assign, out);
}

}  // namespace engine
