#include "rendezvous.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "message.h"

namespace star_comm {
namespace {

using engine::Host;
using engine::RankInfo;
using engine::Result;
using engine::Status;
using engine::StatusCode;

constexpr char kAddressKey[] = "address";

// Places each rank that comes at its position in `rays`.
Status AwaitRays(const Socket& listener, int32_t world_size, Deadline deadline,
                 std::vector<Connection>& rays) {
  for (int32_t arrived = 1; arrived < world_size; ++arrived) {
    auto socket = Accept(listener, deadline);
    if (!socket.ok()) {
      const auto missing = std::find_if(rays.begin(), rays.end(),
                                        [](const Connection& ray) { return !ray.is_open(); });
      const auto rank = static_cast<int32_t>(missing - rays.begin()) + 1;
      return socket.status().WithContext("rank %d has not connected", rank).WithRank(rank);
    }
    Connection ray(std::move(*socket));
    int32_t rank = 0;
    ENGINE_RETURN_IF_ERROR(ray.Receive(&rank, sizeof(rank), deadline));
    if (rank < 1 || rank >= world_size || rays[static_cast<size_t>(rank - 1)].is_open()) {
      return Status::Error(StatusCode::kRendezvous, "a stranger connected as rank %d", rank);
    }
    ray.set_peer(rank);
    rays[static_cast<size_t>(rank - 1)] = std::move(ray);
  }
  return {};
}

Result<std::vector<Connection>> MeetAsCentre(Host& host, const std::string& address,
                                             Deadline deadline) {
  sockaddr_in bound{};
  ENGINE_ASSIGN_OR_RETURN(const Socket listener, Listen(address.c_str(), &bound));
  const auto* bytes = reinterpret_cast<const uint8_t*>(&bound);
  ENGINE_RETURN_IF_ERROR(host.StoreSet(kAddressKey, {bytes, sizeof(bound)}));
  const int32_t world_size = host.rank_info().world_size;
  std::vector<Connection> rays(static_cast<size_t>(world_size - 1));
  const Status status = AwaitRays(listener, world_size, deadline, rays);
  if (!status.ok()) {
    TellFailure(rays, status);
    return status;
  }
  const Header welcome;
  for (Connection& ray : rays) {
    ENGINE_RETURN_IF_ERROR(ray.Send(&welcome, sizeof(welcome), deadline));
  }
  return rays;
}

Result<std::vector<Connection>> MeetAsRay(Host& host, int64_t timeout_ms) {
  const Deadline deadline = After(timeout_ms + kGraceMs);
  std::string value;
  ENGINE_RETURN_IF_ERROR(host.StoreGetString(kAddressKey, timeout_ms, &value));
  sockaddr_in address{};
  std::memcpy(&address, value.data(), std::min(value.size(), sizeof(address)));
  ENGINE_ASSIGN_OR_RETURN(Socket socket, Connect(address));
  std::vector<Connection> connections(1);
  connections[0] = Connection(std::move(socket));
  connections[0].set_peer(0);
  const int32_t rank = host.rank_info().rank;
  Header answer;
  ENGINE_RETURN_IF_ERROR(connections[0].Send(&rank, sizeof(rank), deadline));
  ENGINE_RETURN_IF_ERROR(connections[0].Receive(&answer, sizeof(answer), deadline));
  if (answer.failure != StatusCode::kOk) {
    return Status::Error(answer.failure, "rank 0 gave up because of rank %d", answer.culprit)
        .WithRank(answer.culprit);
  }
  return connections;
}

}  // namespace

void TellFailure(std::vector<Connection>& connections, const Status& failure) noexcept {
  const Header header{.failure = failure.code(), .culprit = std::max(0, failure.rank())};
  for (Connection& ray : connections) {
    if (ray.is_open()) (void)ray.Send(&header, sizeof(header), After(100));
  }
}

Result<std::vector<Connection>> Meet(Host& host, const engine::Options& options) {
  const RankInfo self = host.rank_info();
  const int64_t timeout_ms = options.Int("rendezvous_timeout_ms");
  if (self.world_size == 1) return std::vector<Connection>();
  if (self.rank != 0) return MeetAsRay(host, timeout_ms);
  return MeetAsCentre(host, std::string(options.String("address")), After(timeout_ms));
}

}  // namespace star_comm
