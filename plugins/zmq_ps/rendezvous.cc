// The order, which has no circle: all publish their keys; a server needs those of all ranks before
// it can let one in, so it waits for them, and publishes its address then; ranks wait for that.
#include "rendezvous.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "socket_link.h"
#include "tcp_kit/socket.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kModeBytes = 6;  // of Rendezvous::mode
constexpr int64_t kLookupMs = 1000;

int ServersOf(const RankInfo& ranks, int64_t servers) {
  if (ranks.servers > 0) return ranks.servers;
  if (servers <= 0 || servers > ranks.world_size) return ranks.world_size;
  return static_cast<int>(servers);
}

// Those that have not come, from member `first` on, by their numbers from there.
std::vector<int32_t> Missing(const kit::Values& values, size_t first, size_t end) {
  std::vector<int32_t> missing;
  for (size_t i = first; i < end; ++i) {
    if (!values[i]) missing.push_back(static_cast<int32_t>(i - first));
  }
  return missing;
}

}  // namespace

std::optional<ParameterTraits> CommunicatorSettings::UpdateFor(const RankInfo& ranks) const {
  if (update == "workers" || (update == "auto" && ranks.servers == 0)) return {};
  if (update == "async") return ParameterTraits{.mode = UpdateMode::kAsync};
  if (update != "bounded") return ParameterTraits{.mode = UpdateMode::kSync};
  return ParameterTraits{.mode = UpdateMode::kBounded, .staleness = staleness};
}

Rendezvous::Rendezvous(Host& host, const CommunicatorSettings& settings)
    : host_(host),
      settings_(settings),
      ranks_(host.rank_info()),
      servers_(ServersOf(ranks_, settings.servers)),
      deadline_(kit::DeadlineIn(ranks_.rendezvous_timeout_ms)) {
  members_.rank = ranks_.rank + (ranks_.is_server != 0 ? ranks_.world_size : 0);
  members_.names.resize(static_cast<size_t>(ranks_.world_size + ranks_.servers));
}

// A socket of its own finds the address, and closes at once. One that other hosts cannot reach is
// found out here, and not by a timeout of all ranks.
Status Rendezvous::ChooseAddress() {
  const bool one_host =
      ranks_.one_host != 0 && (members_serve() || ranks_.local_world_size == ranks_.world_size);
  tcp::Endpoint own;
  ENGINE_RETURN_IF_ERROR(
      tcp::Listen(settings_.interface, settings_.hostname, one_host, "zmq_ps", &own).status());
  const bool is_ipv6 = own.address.find(':') != std::string::npos;
  address_ = is_ipv6 ? '[' + own.address + ']' : own.address;
  encrypted_ = settings_.encrypt || !own.loopback;
  return {};
}

// Who takes the place of a lost rank does so in the first communicator, whose members have met.
Status Rendezvous::ChoosePrefix() {
  const std::string key = mode() + own_keys_.public_key;
  members_.prefix.assign(1, '0');
  if (ranks_.incarnation > 0) {
    return kit::SetText(host_, members_.prefix + "/renewed/" + std::to_string(ranks_.rank), key);
  }
  ENGINE_ASSIGN_OR_RETURN(members_.prefix,
                          kit::FreePrefix(host_, "keys/" + std::to_string(members_.rank)));
  return kit::SetValue(host_, members_, members_.prefix + "/keys", key);
}

Result<ServerSettings> Rendezvous::Meet() {
  if (members_serve() && settings_.servers > 0) {
    return Status::Error(StatusCode::kConfig,
                         "the option servers of zmq_ps says how many ranks host a server, but this "
                         "run has %d servers of its own: leave it out",
                         ranks_.servers);
  }
  ENGINE_RETURN_IF_ERROR(ChooseAddress());
  ENGINE_ASSIGN_OR_RETURN(own_keys_, KeyPair::Make());
  ENGINE_RETURN_IF_ERROR(ChoosePrefix());
  ENGINE_ASSIGN_OR_RETURN(keys_, Gather("/keys"));
  for (size_t i = 0; i < keys_.size(); ++i) ENGINE_RETURN_IF_ERROR(CheckMode(i));
  ServerSettings server{
      .endpoint = "tcp://" + address_ + ":*",
      .secret_key = encrypted_ ? own_keys_.secret_key : "",
      .update = settings_.UpdateFor(ranks_),
      .reduce_threads = settings_.reduce_threads,
      .connection = settings_.connection,
      .log = [&host = host_](std::string_view line) { host.Log(LogLevel::kWarning, line); }};
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    server.worker_keys.push_back(*keys_[static_cast<size_t>(rank)]);
  }
  if (server.allows_losses()) server.renewed_keys = RenewedKeys();
  return server;
}

// Looked up when one of them connects: see Authenticator.
KeyLookup Rendezvous::RenewedKeys() const {
  return [&host = host_, prefix = members_.prefix](uint32_t rank) {
    const std::string key = prefix + "/renewed/" + std::to_string(rank);
    uint32_t present = 0;
    std::string value;
    if (!host.StoreHas(key, &present).ok() || !present) return value;
    if (!StoreGetString(host, key, kLookupMs, &value).ok()) value.clear();
    return value.substr(std::min(value.size(), kModeBytes));
  };
}

// Members that differ in this find out here, and not by a handshake that fails.
Status Rendezvous::CheckMode(size_t member) {
  std::string& key = *keys_[member];
  if (key.starts_with(mode())) {
    key.erase(0, kModeBytes);
    return {};
  }
  const int index = static_cast<int>(member);
  const bool is_server = index >= ranks_.world_size;
  const int number = is_server ? index - ranks_.world_size : index;
  return Status::Error(StatusCode::kConfig,
                       "%s %d and %s %d disagree about encryption: give all members of the run "
                       "the same options of zmq_ps",
                       is_server ? "server" : "rank", number, ranks_.is_server ? "server" : "rank",
                       ranks_.rank)
      .WithRank(is_server ? ServerId(number) : number);
}

Status Rendezvous::Publish(const Server* server) {
  if (ranks_.incarnation > 0) return {};  // what its predecessor has published holds
  return kit::SetValue(host_, members_, members_.prefix + "/servers",
                       server ? server->endpoint() : "");
}

Result<WorkerSettings> Rendezvous::FindServers() {
  WorkerSettings worker{.worker = static_cast<uint32_t>(ranks_.rank),
                        .world_size = static_cast<uint32_t>(ranks_.world_size),
                        .incarnation = static_cast<uint32_t>(ranks_.incarnation),
                        .keys = own_keys_,
                        .connection = settings_.connection};
  ENGINE_ASSIGN_OR_RETURN(const kit::Values endpoints, Gather("/servers"));
  const int first = members_serve() ? ranks_.world_size : 0;
  for (int index = 0; index < servers_; ++index) {
    const auto member = static_cast<size_t>(first + index);
    worker.servers.push_back({.endpoint = *endpoints[member],
                              .public_key = encrypted_ ? *keys_[member] : "",
                              .member = members_serve() ? ServerId(index) : index});
  }
  return worker;
}

// Servers of their own are waited for like ranks, and blamed last: they wait for ranks themselves.
Result<kit::Values> Rendezvous::Gather(const char* topic) {
  ENGINE_ASSIGN_OR_RETURN(
      kit::Values values,
      kit::GatherValues(host_, members_, members_.prefix + topic, deadline_, nullptr));
  const auto ranks = static_cast<size_t>(ranks_.world_size);
  ENGINE_RETURN_IF_ERROR(
      kit::NotAppeared(Missing(values, 0, ranks), ranks_.world_size, ranks_.rendezvous_timeout_ms));
  const std::vector<int32_t> missing = Missing(values, ranks, values.size());
  if (missing.empty()) return values;
  const std::string list = List("server", {missing.begin(), missing.end()});
  return Status::Error(StatusCode::kRendezvous,
                       "%s of %d did not appear within %lld ms: check that every server "
                       "was started and runs the same plugins",
                       list.c_str(), ranks_.servers,
                       static_cast<long long>(ranks_.rendezvous_timeout_ms))
      .WithRank(ServerId(missing.front()));
}

}  // namespace engine::zmq_ps
