// Connections between all ranks, made by meeting in the Host's store:
//
//   <prefix>/address/<rank>   for each lane, for each other rank: the address where that rank
//   connects
//
// `prefix` counts the communicators that were made over this store, so that each meets its own
// kind.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channel.h"
#include "clock.h"
#include "engine/host.h"
#include "engine/status.h"

namespace gloo::transport {
class Context;
class Device;
class Pair;
}  // namespace gloo::transport

namespace engine::tcp {

struct MeshSettings {
  int lanes = 1;
  std::string interface;           // name of a network interface, or empty
  std::string hostname;            // own name or address, or empty
  std::string congestion_control;  // of the kernel; empty: see Mesh::CongestionControlFor
  int64_t rendezvous_timeout_ms = 30000;
};

class Mesh {
 public:
  // Collective, with a deadline. kRendezvous names the ranks that are missing; kConfig when the
  // settings name no usable address.
  static Result<std::unique_ptr<Mesh>> Connect(Host& host, const MeshSettings& settings) noexcept;
  ~Mesh();

  Channel& channel(int lane) noexcept { return *channels_[static_cast<size_t>(lane)]; }
  const std::string& prefix() const noexcept { return prefix_; }

  // Makes pending and later calls of all channels fail. [any-thread]
  void Shutdown() noexcept;

 private:
  Mesh(Host& host, const MeshSettings& settings);

  Status Run();
  Status ChoosePrefix();
  Status OpenDevice();
  Status PublishAddresses();
  Status ConnectTo(int peer);
  Status Missing(int peer);
  CongestionControl CongestionControlFor(const ::gloo::transport::Pair& pair) const;
  std::string AddressKey(int rank) const;

  Host& host_;
  const MeshSettings settings_;
  const RankInfo ranks_;
  const Clock::time_point deadline_;
  std::string prefix_;
  size_t address_bytes_ = 0;  // of one address; the same on all ranks
  std::shared_ptr<::gloo::transport::Device> device_;
  std::vector<std::shared_ptr<::gloo::transport::Context>> contexts_;  // one per lane
  std::vector<std::unique_ptr<Channel>> channels_;                     // use contexts_
};

}  // namespace engine::tcp
