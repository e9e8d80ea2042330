// The order, which has no circle: ranks publish their keys and wait for servers; a server needs the
// keys of all ranks before it can let one in, so it waits for them and publishes its address then.
// A rank that hosts a server does both, in that order.
#include "rendezvous.h"

#include <string_view>
#include <utility>
#include <vector>

#include "describe.h"
#include "kit/rendezvous.h"
#include "socket_link.h"

namespace engine::zmq_ps {
namespace {

constexpr std::string_view kPlain = "-";
constexpr int64_t kLookupMs = 1000;

int ServersOf(const RankInfo& ranks, int64_t servers) {
  if (ranks.servers > 0) return ranks.servers;
  if (servers <= 0 || servers > ranks.world_size) return ranks.world_size;
  return static_cast<int>(servers);
}

std::string OrPlain(const std::string& key) {
  return key.empty() ? std::string(kPlain) : key;
}

}  // namespace

Rendezvous::Rendezvous(Host& host, RendezvousSettings settings)
    : host_(host),
      settings_(std::move(settings)),
      ranks_(host.rank_info()),
      servers_(ServersOf(ranks_, settings_.servers)),
      deadline_(kit::DeadlineIn(settings_.timeout_ms)) {}

// Loopback where all members are on one host, unless an option says otherwise. An address that other
// hosts cannot reach is found out here, and not by a timeout of all ranks.
Status Rendezvous::ChooseAddress() {
  const bool one_host =
      ranks_.one_host != 0 && (members_serve() || ranks_.local_world_size == ranks_.world_size);
  if (one_host && settings_.interface.empty() && settings_.hostname.empty()) {
    address_ = "127.0.0.1";
  } else {
    ENGINE_ASSIGN_OR_RETURN(address_, FindAddress(settings_.interface, settings_.hostname));
  }
  const bool loopback = IsLoopback("tcp://" + address_ + ":*");
  encrypted_ = settings_.encrypt || !loopback;
  if (one_host || !loopback) return {};
  return Status::Error(StatusCode::kConfig,
                       "this host's name stands for %s, which other hosts cannot reach: set the "
                       "option interface or hostname of zmq_ps",
                       address_.c_str());
}

Status Rendezvous::Meet(ServerSettings* server) {
  if (members_serve() && settings_.servers > 0) {
    return Status::Error(StatusCode::kConfig,
                         "the option servers of zmq_ps says how many ranks host a server, but this "
                         "run has %d servers of its own: leave it out",
                         ranks_.servers);
  }
  ENGINE_RETURN_IF_ERROR(ChooseAddress());
  if (encrypted_) {
    ENGINE_ASSIGN_OR_RETURN(worker_keys_, KeyPair::Make());
    ENGINE_ASSIGN_OR_RETURN(server_keys_, KeyPair::Make());
  }
  const bool is_server = ranks_.is_server != 0;
  const bool renews = ranks_.incarnation > 0;
  prefix_.assign(1, '0');  // who takes the place of a lost rank does so in the first communicator
  if (!renews) {
    const std::string own =
        std::string(is_server ? "server/" : "worker/") + std::to_string(ranks_.rank);
    ENGINE_ASSIGN_OR_RETURN(prefix_, kit::FreePrefix(host_, own));
  }
  if (!is_server) {
    ENGINE_RETURN_IF_ERROR(kit::SetText(host_, Key(renews ? "renewed" : "worker", ranks_.rank),
                                        OrPlain(worker_keys_.public_key)));
  }
  server->endpoint = "tcp://" + address_ + ":*";
  server->keys = server_keys_;
  if (members_serve() && !is_server) return {};
  return TakeWorkerKeys(server);
}

// Members that differ in this find out here, and not by a handshake that fails.
Status Rendezvous::CheckEncryption(const std::string& other, const std::string& key,
                                   int32_t blamed) const {
  if ((key != kPlain) == encrypted_) return {};
  return Status::Error(StatusCode::kConfig,
                       "%s and %s %d disagree about encryption: give all members of the run the "
                       "same options of zmq_ps",
                       other.c_str(), ranks_.is_server ? "server" : "rank", ranks_.rank)
      .WithRank(blamed);
}

// Keys of new processes are looked up when one of them connects: see Authenticator.
Status Rendezvous::TakeWorkerKeys(ServerSettings* server) {
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    ENGINE_ASSIGN_OR_RETURN(std::string key, Fetch("worker", rank));
    ENGINE_RETURN_IF_ERROR(CheckEncryption("rank " + std::to_string(rank), key, rank));
    if (encrypted_) server->worker_keys.push_back(std::move(key));
  }
  if (!encrypted_ || !server->allows_losses()) return {};
  server->renewed_keys = [&host = host_, prefix = prefix_](uint32_t rank) {
    const std::string key = prefix + "/renewed/" + std::to_string(rank);
    bool present = false;
    std::string value;
    if (!host.StoreHas(key, &present).ok() || !present) return value;
    if (!host.StoreGetString(key, kLookupMs, &value).ok()) value.clear();
    return value;
  };
  return {};
}

Status Rendezvous::Publish(const Server& server) {
  return kit::SetText(host_, Key("server", ranks_.rank),
                      server.endpoint() + ' ' + OrPlain(server_keys_.public_key));
}

Status Rendezvous::FindServers(WorkerSettings* worker) {
  worker->channel.keys = worker_keys_;
  for (int index = 0; index < servers_; ++index) {
    ENGINE_ASSIGN_OR_RETURN(const std::string record, Fetch("server", index));
    const size_t space = record.find(' ');
    const std::string key = space == std::string::npos ? "" : record.substr(space + 1);
    ServerAddress address{
        .endpoint = record.substr(0, space), .rank = index, .is_member = members_serve()};
    ENGINE_RETURN_IF_ERROR(CheckEncryption(Describe(address), key, address.blame()));
    if (encrypted_) address.public_key = key;
    worker->servers.push_back(std::move(address));
  }
  return {};
}

Result<std::string> Rendezvous::Fetch(const char* role, int index) {
  std::string value;
  const Status found =
      host_.StoreGetString(Key(role, index), kit::MillisecondsUntil(deadline_), &value);
  if (found.code() == StatusCode::kTimeout) return Missing(role, index);
  ENGINE_RETURN_IF_ERROR(found);
  return value;
}

// All that are missing by now, `first` first. A server of its own waits for the ranks, so if one of
// these is missing, it is to blame.
Status Rendezvous::Missing(const char* role, int first) {
  const bool servers = std::string_view(role) == "server";
  const bool is_member = servers && members_serve();
  for (int rank = 0; is_member && rank < ranks_.world_size; ++rank) {
    bool present = true;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key("worker", rank), &present));
    if (!present) return Missing("worker", rank);
  }
  std::vector<int32_t> missing = {first};
  for (int other = first + 1; other < (servers ? servers_ : ranks_.world_size); ++other) {
    bool present = true;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key(role, other), &present));
    if (!present) missing.push_back(other);
  }
  if (!is_member) return kit::NotAppeared(missing, ranks_.world_size, settings_.timeout_ms);
  std::string list;
  for (const int32_t index : missing) {
    list.append(list.empty() ? "" : ", ").append(std::to_string(index));
  }
  return Status::Error(StatusCode::kRendezvous,
                       "server%s %s of %d did not appear within %lld ms: check that every server "
                       "was started and runs the same plugins",
                       missing.size() > 1 ? "s" : "", list.c_str(), servers_,
                       static_cast<long long>(settings_.timeout_ms))
      .WithRank(ServerId(first));
}

std::string Rendezvous::Key(const char* role, int index) const {
  return prefix_ + '/' + role + '/' + std::to_string(index);
}

}  // namespace engine::zmq_ps
