#include "rendezvous.h"

#include <span>
#include <string_view>

#include "describe.h"
#include "socket_link.h"

namespace engine::zmq_ps {
namespace {

constexpr char kPlain[] = "-";
constexpr int64_t kLookupMs = 1000;

int ServersOf(const RankInfo& ranks, int64_t servers) {
  if (ranks.servers > 0) return ranks.servers;
  if (servers <= 0 || servers > ranks.world_size) return ranks.world_size;
  return static_cast<int>(servers);
}

std::string OrPlain(const std::string& key) {
  return key.empty() ? std::string(kPlain) : key;
}
std::string OrEmpty(const std::string& key) {
  return key == kPlain ? std::string() : key;
}

}  // namespace

Rendezvous::Rendezvous(Host& host, RendezvousSettings settings)
    : host_(host),
      settings_(std::move(settings)),
      ranks_(host.rank_info()),
      servers_(ServersOf(ranks_, settings_.servers)),
      deadline_(DeadlineIn(settings_.timeout_ms)) {}

Status Rendezvous::ChooseAddress() {
  const bool one_host =
      ranks_.one_host != 0 && (members_serve() || ranks_.local_world_size == ranks_.world_size);
  if (one_host && settings_.interface.empty() && settings_.hostname.empty()) {
    address_ = "127.0.0.1";
  } else {
    ENGINE_ASSIGN_OR_RETURN(address_, FindAddress(settings_.interface, settings_.hostname));
  }
  const bool loopback = IsLoopback("tcp://" + address_ + ":*");
  if (!one_host && loopback) {
    return Status::Error(StatusCode::kConfig,
                         "this host's name stands for %s, which other hosts cannot reach: set the "
                         "option interface or hostname of zmq_ps",
                         address_.c_str());
  }
  encrypted_ = settings_.encrypt || !loopback;
  return {};
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
  ENGINE_RETURN_IF_ERROR(ChooseSpace());
  if (ranks_.is_server == 0) ENGINE_RETURN_IF_ERROR(PublishWorker());
  server->endpoint = "tcp://" + address_ + ":*";
  server->keys = server_keys_;
  if (members_serve() && ranks_.is_server == 0) return {};
  return TakeWorkerKeys(server);
}

Status Rendezvous::PublishWorker() {
  return Publish(ranks_.incarnation == 0 ? "worker" : "renewed", OrPlain(worker_keys_.public_key));
}

Status Rendezvous::TakeWorkerKeys(ServerSettings* server) {
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    ENGINE_ASSIGN_OR_RETURN(std::string key, Fetch("worker", rank));
    if (std::string_view(key) == kPlain) key.clear();
    if (key.empty() == encrypted_) {
      return Status::Error(StatusCode::kConfig,
                           "rank %d and %s %d disagree about encryption: give all members of the "
                           "run the same options of zmq_ps",
                           rank, ranks_.is_server ? "server" : "rank", ranks_.rank)
          .WithRank(rank);
    }
    if (encrypted_) server->worker_keys.push_back(std::move(key));
  }
  if (!encrypted_ || !settings_.allows_losses) return {};
  server->renewed_keys = [&host = host_, space = space_](uint32_t rank) {
    const std::string key = space + "/renewed/" + std::to_string(rank);
    bool present = false;
    std::string value;
    if (!host.StoreHas(key, &present).ok() || !present) return value;
    if (!host.StoreGetString(key, kLookupMs, &value).ok()) value.clear();
    return value;
  };
  return {};
}

Status Rendezvous::Publish(const Server& server) {
  return Publish("server", server.endpoint() + ' ' + OrPlain(server_keys_.public_key));
}

Status Rendezvous::FindServers(WorkerSettings* worker) {
  worker->keys = worker_keys_;
  for (int index = 0; index < servers_; ++index) {
    ENGINE_ASSIGN_OR_RETURN(const std::string record, Fetch("server", index));
    const size_t space = record.find(' ');
    ServerAddress address{.endpoint = record.substr(0, space),
                          .public_key = space == std::string::npos
                                            ? std::string()
                                            : OrEmpty(record.substr(space + 1)),
                          .rank = index,
                          .is_member = members_serve()};
    if (space == std::string::npos || address.public_key.empty() == encrypted_) {
      return Status::Error(StatusCode::kConfig,
                           "%s and rank %d disagree about encryption: give all members of the run "
                           "the same options of zmq_ps",
                           Describe(address).c_str(), ranks_.rank)
          .WithRank(address.blame());
    }
    worker->servers.push_back(std::move(address));
  }
  return {};
}

// The first space in which this member has not been: all create communicators in one order. Who
// takes the place of a lost rank does so in the first one.
Status Rendezvous::ChooseSpace() {
  const char* const role = ranks_.is_server ? "server" : "worker";
  bool used = true;
  for (int number = 0; used; ++number) {
    space_ = std::to_string(number);
    if (ranks_.incarnation > 0) return {};
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key(role, ranks_.rank), &used));
  }
  return {};
}

Status Rendezvous::Publish(const std::string& role, const std::string& value) {
  return host_.StoreSet(Key(role, ranks_.rank),
                        std::span(reinterpret_cast<const uint8_t*>(value.data()), value.size()));
}

Result<std::string> Rendezvous::Fetch(const std::string& role, int rank) {
  std::string value;
  const Status found = host_.StoreGetString(Key(role, rank), MillisecondsUntil(deadline_), &value);
  if (found.code() == StatusCode::kTimeout) return Missing(role, rank);
  ENGINE_RETURN_IF_ERROR(found);
  return value;
}

// The message lists all that are missing by now, `index` first. A server of its own waits for the
// ranks, so if one of these is missing, it is to blame.
Status Rendezvous::Missing(const std::string& role, int index) {
  if (role == "server" && members_serve()) {
    for (int rank = 0; rank < ranks_.world_size; ++rank) {
      bool present = true;
      ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key("worker", rank), &present));
      if (!present) return Missing("worker", rank);
    }
  }
  const bool is_member = role == "server" && members_serve();
  const int end = role == "server" ? servers_ : ranks_.world_size;
  std::string list = std::to_string(index);
  for (int other = index + 1; other < end; ++other) {
    bool present = true;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key(role, other), &present));
    if (!present) list += ", " + std::to_string(other);
  }
  const bool several = list.find(',') != std::string::npos;
  const char* const what = is_member ? "server" : "rank";
  return Status::Error(StatusCode::kRendezvous,
                       "%s%s %s of %d did not appear within %lld ms: check that every %s was "
                       "started and runs the same plugins",
                       what, several ? "s" : "", list.c_str(),
                       is_member ? servers_ : ranks_.world_size,
                       static_cast<long long>(settings_.timeout_ms), what)
      .WithRank(is_member ? BlameServer(index) : index);
}

std::string Rendezvous::Key(const std::string& role, int rank) const {
  return space_ + '/' + role + '/' + std::to_string(rank);
}

}  // namespace engine::zmq_ps
