#include "mesh.h"

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>

#include <exception>
#include <span>

namespace engine::tcp {
namespace {

bool IsLoopback(const ::gloo::transport::Address& address) {
  const auto* tcp = dynamic_cast<const ::gloo::transport::tcp::Address*>(&address);
  if (!tcp) return false;
  const sockaddr_storage& storage = tcp->getSockaddr();
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Connect(Host& host, const MeshSettings& settings) noexcept {
  try {
    std::unique_ptr<Mesh> mesh(new Mesh(host, settings));
    ENGINE_RETURN_IF_ERROR(mesh->Run());
    return mesh;
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kRendezvous, "cannot connect the ranks: %s", error.what());
  }
}

Mesh::Mesh(Host& host, const MeshSettings& settings)
    : host_(host),
      settings_(settings),
      ranks_(host.rank_info()),
      deadline_(DeadlineIn(settings.rendezvous_timeout_ms)) {}

Mesh::~Mesh() {
  channels_.clear();
  contexts_.clear();
}

Status Mesh::Run() {
  ENGINE_RETURN_IF_ERROR(ChoosePrefix());
  ENGINE_RETURN_IF_ERROR(OpenDevice());
  ENGINE_RETURN_IF_ERROR(PublishAddresses());
  for (int peer = 0; peer < ranks_.world_size; ++peer) {
    if (peer != ranks_.rank) ENGINE_RETURN_IF_ERROR(ConnectTo(peer));
  }
  host_.Log(LogLevel::kDebug, "connected all ranks: " + device_->str());
  return {};
}

Status Mesh::ChoosePrefix() {
  bool used = true;
  for (int number = 0; used; ++number) {
    prefix_ = std::to_string(number);
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(AddressKey(ranks_.rank), &used));
  }
  return {};
}

Status Mesh::OpenDevice() {
  const bool one_host = ranks_.local_world_size == ranks_.world_size;
  ::gloo::transport::tcp::attr attributes;
  attributes.iface = settings_.interface;
  attributes.hostname = settings_.hostname;
  if (attributes.iface.empty() && attributes.hostname.empty() && one_host) {
    attributes.hostname = "127.0.0.1";
  }
  try {
    device_ = ::gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kConfig,
                         "no usable network address for interface '%s', hostname '%s' (%s): set "
                         "the option interface or hostname of tcp",
                         attributes.iface.c_str(), attributes.hostname.c_str(), error.what());
  }
  return {};
}

Status Mesh::PublishAddresses() {
  std::vector<char> record;
  for (int lane = 0; lane < settings_.lanes; ++lane) {
    contexts_.push_back(device_->createContext(ranks_.rank, ranks_.world_size));
    channels_.push_back(std::make_unique<Channel>(ranks_.rank, ranks_.world_size));
    // Gloo waits five times as long as it is told for a connection.
    contexts_.back()->setTimeout(std::chrono::milliseconds(MillisecondsUntil(deadline_) / 5 + 1));
    for (int peer = 0; peer < ranks_.world_size; ++peer) {
      if (peer == ranks_.rank) continue;
      const auto& address = contexts_.back()->createPair(peer)->address();
      if (ranks_.local_world_size != ranks_.world_size && IsLoopback(address)) {
        return Status::Error(StatusCode::kConfig,
                             "this host's name stands for %s, which other hosts cannot reach: set "
                             "the option interface or hostname of tcp",
                             address.str().c_str());
      }
      const std::vector<char> bytes = address.bytes();
      address_bytes_ = bytes.size();
      record.insert(record.end(), bytes.begin(), bytes.end());
    }
  }
  return host_.StoreSet(AddressKey(ranks_.rank),
                        std::span(reinterpret_cast<const uint8_t*>(record.data()), record.size()));
}

Status Mesh::ConnectTo(int peer) {
  std::string record;
  const Status found =
      host_.StoreGetString(AddressKey(peer), MillisecondsUntil(deadline_), &record);
  if (found.code() == StatusCode::kTimeout) return Missing(peer);
  ENGINE_RETURN_IF_ERROR(found);
  const size_t per_lane = static_cast<size_t>(ranks_.world_size - 1) * address_bytes_;
  if (record.size() != per_lane * static_cast<size_t>(settings_.lanes)) {
    return Status::Error(StatusCode::kRendezvous,
                         "rank %d published %zu bytes of addresses where %zu were expected: all "
                         "ranks must have the same io_threads and the same tcp",
                         peer, record.size(), per_lane * static_cast<size_t>(settings_.lanes))
        .WithRank(peer);
  }
  // The peer's list leaves out the peer itself.
  const int position = ranks_.rank < peer ? ranks_.rank : ranks_.rank - 1;
  for (int lane = 0; lane < settings_.lanes; ++lane) {
    const auto begin =
        record.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(lane) * per_lane +
                                                static_cast<size_t>(position) * address_bytes_);
    const std::vector<char> address(begin, begin + static_cast<ptrdiff_t>(address_bytes_));
    ::gloo::transport::Pair& pair = *contexts_[static_cast<size_t>(lane)]->getPair(peer);
    try {
      pair.connect(address);
    } catch (const std::exception& error) {
      return Status::Error(StatusCode::kRendezvous, "cannot connect to rank %d: %s", peer,
                           error.what())
          .WithRank(peer);
    }
    ENGINE_RETURN_IF_ERROR(channel(lane).Attach(peer, pair, address, CongestionControlFor(pair)));
  }
  return {};
}

// The first missing rank is `peer`; the message lists all that are missing by now.
Status Mesh::Missing(int peer) {
  std::string list = std::to_string(peer);
  for (int other = peer + 1; other < ranks_.world_size; ++other) {
    bool present = other == ranks_.rank;
    if (!present) ENGINE_RETURN_IF_ERROR(host_.StoreHas(AddressKey(other), &present));
    if (!present) list += ", " + std::to_string(other);
  }
  return Status::Error(StatusCode::kRendezvous,
                       "rank%s %s of %d did not appear within %lld ms: check that every rank "
                       "was started and runs the same plugins",
                       list.find(',') == std::string::npos ? "" : "s", list.c_str(),
                       ranks_.world_size, static_cast<long long>(settings_.rendezvous_timeout_ms))
      .WithRank(peer);
}

// There is no congestion on the loopback interface, but BBR, the choice of some hosts, paces there
// too: README.md has the cost.
CongestionControl Mesh::CongestionControlFor(const ::gloo::transport::Pair& pair) const {
  if (!settings_.congestion_control.empty()) {
    return {.name = settings_.congestion_control, .required = true};
  }
  return {.name = IsLoopback(pair.address()) ? "cubic" : ""};
}

std::string Mesh::AddressKey(int rank) const {
  return prefix_ + "/address/" + std::to_string(rank);
}

void Mesh::Shutdown() noexcept {
  for (const auto& channel : channels_) channel->Shutdown();
}

}  // namespace engine::tcp
