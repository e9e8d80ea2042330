#include "rendezvous.h"

#include <span>

#include "socket_link.h"

namespace engine::zmq_ps {
namespace {

constexpr char kPlain[] = "-";

int ServersOf(const RankInfo& ranks, int64_t servers) {
  if (servers <= 0 || servers > ranks.world_size) return ranks.world_size;
  return static_cast<int>(servers);
}

std::string OrPlain(const std::string& key) {
  return key.empty() ? kPlain : key;
}
std::string OrEmpty(const std::string& key) {
  return key == kPlain ? "" : key;
}

}  // namespace

Rendezvous::Rendezvous(Host& host, RendezvousSettings settings)
    : host_(host),
      settings_(std::move(settings)),
      ranks_(host.rank_info()),
      servers_(ServersOf(ranks_, settings_.servers)),
      deadline_(DeadlineIn(settings_.timeout_ms)) {}

Status Rendezvous::Meet(ServerSettings* server) {
  const bool one_host = ranks_.local_world_size == ranks_.world_size;
  if (one_host && settings_.interface.empty() && settings_.hostname.empty()) {
    address_ = "127.0.0.1";
  } else {
    ENGINE_ASSIGN_OR_RETURN(address_, FindAddress(settings_.interface, settings_.hostname));
  }
  const std::string endpoint = "tcp://" + address_ + ":*";
  if (!one_host && IsLoopback(endpoint)) {
    return Status::Error(StatusCode::kConfig,
                         "this host's name stands for %s, which other hosts cannot reach: set the "
                         "option interface or hostname of zmq_ps",
                         address_.c_str());
  }
  if (settings_.encrypt || !IsLoopback(endpoint)) {
    ENGINE_ASSIGN_OR_RETURN(worker_keys_, KeyPair::Make());
    ENGINE_ASSIGN_OR_RETURN(server_keys_, KeyPair::Make());
  }
  ENGINE_RETURN_IF_ERROR(ChooseSpace());
  ENGINE_RETURN_IF_ERROR(Publish("worker", OrPlain(worker_keys_.public_key)));
  server->endpoint = endpoint;
  server->keys = server_keys_;
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    ENGINE_ASSIGN_OR_RETURN(const std::string key, Fetch("worker", rank));
    if (OrEmpty(key).empty() != worker_keys_.public_key.empty()) {
      return Status::Error(StatusCode::kConfig,
                           "rank %d and rank %d disagree about encryption: give all ranks the same "
                           "options of zmq_ps",
                           rank, ranks_.rank)
          .WithRank(rank);
    }
    if (!server_keys_.public_key.empty()) server->worker_keys.push_back(key);
  }
  return {};
}

Status Rendezvous::Exchange(const Server* server, WorkerSettings* worker) {
  if (server) {
    ENGINE_RETURN_IF_ERROR(
        Publish("server", server->endpoint() + ' ' + OrPlain(server_keys_.public_key)));
  }
  worker->keys = worker_keys_;
  for (int rank = 0; rank < servers_; ++rank) {
    ENGINE_ASSIGN_OR_RETURN(const std::string record, Fetch("server", rank));
    const size_t space = record.find(' ');
    if (space == std::string::npos) {
      return Status::Error(StatusCode::kRendezvous, "rank %d published no address: '%s'", rank,
                           record.c_str())
          .WithRank(rank);
    }
    worker->servers.push_back({record.substr(0, space), OrEmpty(record.substr(space + 1)), rank});
  }
  return {};
}

// The first space in which this rank has not been: all ranks create communicators in one order.
Status Rendezvous::ChooseSpace() {
  bool used = true;
  for (int number = 0; used; ++number) {
    space_ = std::to_string(number);
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key("worker", ranks_.rank), &used));
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

// The first missing rank is `rank`; the message lists all that are missing by now.
Status Rendezvous::Missing(const std::string& role, int rank) {
  std::string list = std::to_string(rank);
  const int end = role == "server" ? servers_ : ranks_.world_size;
  for (int other = rank + 1; other < end; ++other) {
    bool present = true;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(Key(role, other), &present));
    if (!present) list += ", " + std::to_string(other);
  }
  const bool several = list.find(',') != std::string::npos;
  return Status::Error(StatusCode::kRendezvous,
                       "rank%s %s of %d did not appear within %lld ms: check that every rank was "
                       "started and runs the same plugins",
                       several ? "s" : "", list.c_str(), ranks_.world_size,
                       static_cast<long long>(settings_.timeout_ms))
      .WithRank(rank);
}

std::string Rendezvous::Key(const std::string& role, int rank) const {
  return space_ + '/' + role + '/' + std::to_string(rank);
}

}  // namespace engine::zmq_ps
