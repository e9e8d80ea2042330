#include "bench/link/linked_hosts.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "app/command/amount.h"
#include "bench/link/program.h"

namespace engine::bench {
namespace {

using nlohmann::json;

constexpr double kPayloadShare = 1448.0 / 1514.0;  // MTU 1500, timestamps, Ethernet header
constexpr const char* kSubnet = "10.0.0.0/24";     // seen inside the namespaces only

std::string AddressOf(int host) {
  return "10.0.0." + std::to_string(host + 1);
}

std::string Port(int host) {
  return "port" + std::to_string(host);
}

Status Check(const LinkOptions& options) {
  if (options.hosts < 1 || options.hosts > kMaxLinkedHosts) {
    return Status::Error(StatusCode::kInvalidArgument, "%d hosts cannot be linked; 1 to %d can",
                         options.hosts, kMaxLinkedHosts);
  }
  if (options.burst_bytes < 2048 || options.limit_bytes < 2048) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a link's burst and limit must hold a packet: at least 2048 bytes");
  }
  if (geteuid() == 0) return {};
  return Status::Error(StatusCode::kUnsupported,
                       "rate-limited links need root, to make network namespaces; run this "
                       "with sudo, or without the limit");
}

}  // namespace

LinkedHosts::LinkedHosts(const LinkOptions& options)
    : options_(options), ip_(FindProgram("ip")), tc_(FindProgram("tc")) {}

Status LinkedHosts::Ip(const std::string& name, const std::string& commands) const {
  return RunProgram({ip_, "-n", name, "-batch", "-"}, commands).status();
}

// Links without a queue of their own, a bridge that learns at once where everybody is.
Status LinkedHosts::MakeSwitch() const {
  std::string commands =
      "link add br0 type bridge stp_state 0 forward_delay 0\n"
      "link set br0 addrgenmode none up\n";
  for (int i = 0; i < hosts(); ++i) {
    commands += "link add " + Port(i) + " type veth peer name eth0 netns " + host(i) + "\n";
    commands += "link set " + Port(i) + " addrgenmode none master br0 up\n";
  }
  return Ip(namespaces_->names()[0], commands);
}

Status LinkedHosts::MakeHost(int index) const {
  return Ip(host(index), "link set lo up\naddr add " + AddressOf(index) +
                             "/24 dev eth0\nlink set eth0 addrgenmode none up\n");
}

// A program that asks for the address of its own host's name shall get the one that others reach.
Status LinkedHosts::NameHost(int index) const {
  char own[256] = {};
  gethostname(own, sizeof own - 1);
  std::string lines = "127.0.0.1 localhost\n" + AddressOf(index) + " " + own + "\n";
  for (int i = 0; i < hosts(); ++i) lines += AddressOf(i) + " host" + std::to_string(i) + "\n";
  return namespaces_->SetHostNames(static_cast<size_t>(index) + 1, lines);
}

Status LinkedHosts::Limit(const std::string& name, const std::vector<std::string>& devices) const {
  std::string commands;
  for (const std::string& device : devices) {
    commands += "qdisc add dev " + device + " root tbf rate " +
                std::to_string(static_cast<int64_t>(facts_.bits_per_second)) + "bit burst " +
                std::to_string(options_.burst_bytes) + "b limit " +
                std::to_string(options_.limit_bytes) + "b\n";
  }
  return RunProgram({tc_, "-n", name, "-batch", "-"}, commands).status();
}

Status LinkedHosts::RouteAll(const std::string& how) const {
  for (int i = 0; i < hosts(); ++i) {
    ENGINE_RETURN_IF_ERROR(Ip(host(i), "route replace " + std::string(kSubnet) + " dev eth0 src " +
                                           AddressOf(i) + how + "\n"));
  }
  return {};
}

Result<std::string> LinkedHosts::DefaultCongestion() const {
  ENGINE_ASSIGN_OR_RETURN(std::string name,
                          RunProgram({ip_, "netns", "exec", host(0), FindProgram("cat"),
                                      "/proc/sys/net/ipv4/tcp_congestion_control"}));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

// A kernel without that congestion control refuses the route; the links then work with its default,
// which the facts tell.
Status LinkedHosts::MakeRoutes() {
  facts_.congestion = options_.congestion;
  if (RouteAll(" congctl " + options_.congestion + " quickack 1").ok()) return {};
  ENGINE_ASSIGN_OR_RETURN(facts_.congestion, DefaultCongestion());
  return RouteAll(" quickack 1");
}

Result<double> ParseRate(std::string_view text) {
  // Below the smallest, the first bucket alone would be seconds of traffic.
  return command::ParseAmount("link", text, {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}},
                              /*least=*/1e5, /*most=*/1e11,
                              "rate; write a number and kbit, mbit or gbit, from 100kbit to "
                              "100gbit, such as 375mbit");
}

LinkCounters Difference(const LinkCounters& before, const LinkCounters& after) {
  return {.sent_bytes = after.sent_bytes - before.sent_bytes,
          .sent_packets = after.sent_packets - before.sent_packets,
          .dropped_packets = after.dropped_packets - before.dropped_packets};
}

Result<std::unique_ptr<LinkedHosts>> LinkedHosts::Create(const LinkOptions& options) {
  ENGINE_ASSIGN_OR_RETURN(const double rate, ParseRate(options.rate));
  ENGINE_RETURN_IF_ERROR(Check(options));
  std::unique_ptr<LinkedHosts> linked(new LinkedHosts(options));
  if (linked->ip_.empty() || linked->tc_.empty()) {
    return Status::Error(StatusCode::kUnsupported,
                         "rate-limited links need the program %s, which is not installed; install "
                         "the package iproute2",
                         linked->ip_.empty() ? "ip" : "tc");
  }
  linked->facts_.bits_per_second = rate;
  linked->facts_.goodput_bits_per_second = rate * kPayloadShare;
  ENGINE_RETURN_IF_ERROR(linked->Make());
  return linked;
}

Status LinkedHosts::Make() {
  ENGINE_RETURN_IF_ERROR(RemoveStaleNamespaces(ip_));
  std::vector<std::string> suffixes = {"switch"}, ports;
  for (int i = 0; i < hosts(); ++i) {
    suffixes.push_back("host" + std::to_string(i));
    ports.push_back(Port(i));
  }
  ENGINE_ASSIGN_OR_RETURN(namespaces_, Namespaces::Create(ip_, suffixes));
  ENGINE_RETURN_IF_ERROR(MakeSwitch());
  ENGINE_RETURN_IF_ERROR(Limit(namespaces_->names()[0], ports));
  for (int i = 0; i < hosts(); ++i) {
    ENGINE_RETURN_IF_ERROR(MakeHost(i));
    ENGINE_RETURN_IF_ERROR(NameHost(i));
    ENGINE_RETURN_IF_ERROR(Limit(host(i), {"eth0"}));
  }
  return MakeRoutes();
}

std::vector<std::string> LinkedHosts::CommandPrefix(int host) const {
  ENGINE_CHECK(host >= 0 && host < hosts(), "host %d of %d", host, hosts());
  return {ip_, "netns", "exec", this->host(host)};
}

std::string LinkedHosts::Address(int host) const {
  ENGINE_CHECK(host >= 0 && host < hosts(), "host %d of %d", host, hosts());
  return AddressOf(host);
}

Result<LinkCounters> LinkedHosts::Counters() const {
  LinkCounters sum;
  int buckets = 0;
  for (const std::string& name : namespaces_->names()) {
    ENGINE_ASSIGN_OR_RETURN(const std::string text,
                            RunProgram({tc_, "-n", name, "-s", "-j", "qdisc"}));
    const json queues = json::parse(text, nullptr, false);
    if (!queues.is_array()) {
      return Status::Error(StatusCode::kInternal, "tc gives no list of queues: %s", text.c_str());
    }
    for (const json& queue : queues) {
      if (!queue.is_object() || queue.value("kind", "") != "tbf") continue;
      sum.sent_bytes += queue.value("bytes", uint64_t{0});
      sum.sent_packets += queue.value("packets", uint64_t{0});
      sum.dropped_packets += queue.value("drops", uint64_t{0});
      ++buckets;
    }
  }
  if (buckets == 2 * hosts()) return sum;
  return Status::Error(StatusCode::kInternal, "%d of the %d links have their limit", buckets,
                       2 * hosts());
}

}  // namespace engine::bench
