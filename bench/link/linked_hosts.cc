#include "bench/link/linked_hosts.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "bench/link/namespaces.h"
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

Status CheckOptions(const LinkOptions& options) {
  if (options.hosts < 1 || options.hosts > kMaxLinkedHosts) {
    return Status::Error(StatusCode::kInvalidArgument, "%d hosts cannot be linked; 1 to %d can",
                         options.hosts, kMaxLinkedHosts);
  }
  if (options.burst_bytes < 2048 || options.limit_bytes < 2048) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "a link's burst and limit must hold a packet: at least 2048 bytes");
  }
  return {};
}

struct Programs {
  std::string ip, tc;
};

Result<Programs> FindPrograms() {
  if (geteuid() != 0) {
    return Status::Error(StatusCode::kUnsupported,
                         "rate-limited links need root, to make network namespaces; run this "
                         "with sudo, or without the limit");
  }
  Programs programs{FindProgram("ip"), FindProgram("tc")};
  if (!programs.ip.empty() && !programs.tc.empty()) return programs;
  return Status::Error(StatusCode::kUnsupported,
                       "rate-limited links need the program %s, which is not installed; install "
                       "the package iproute2",
                       programs.ip.empty() ? "ip" : "tc");
}

}  // namespace

struct LinkedHosts::State {
  Programs programs;
  LinkOptions options;
  LinkFacts facts;
  std::unique_ptr<Namespaces> namespaces;  // of the switch, then of the hosts

  const std::string& host(int index) const { return namespaces->names()[index + 1]; }

  Status Ip(const std::string& name, const std::string& commands) const {
    return RunProgram({programs.ip, "-n", name, "-batch", "-"}, commands).status();
  }
  Status MakeSwitch() const;
  Status MakeHost(int index) const;
  Status NameHost(int index) const;
  Status Limit(const std::string& name, const std::vector<std::string>& devices) const;
  Status MakeRoutes();
  Status RouteAll(const std::string& how) const;
  Result<std::string> DefaultCongestion() const;
};

// Links without a queue of their own, a bridge that learns at once where everybody is.
Status LinkedHosts::State::MakeSwitch() const {
  std::string commands =
      "link add br0 type bridge stp_state 0 forward_delay 0\n"
      "link set br0 addrgenmode none up\n";
  for (int i = 0; i < options.hosts; ++i) {
    commands += "link add " + Port(i) + " type veth peer name eth0 netns " + host(i) + "\n";
    commands += "link set " + Port(i) + " addrgenmode none master br0 up\n";
  }
  return Ip(namespaces->names()[0], commands);
}

Status LinkedHosts::State::MakeHost(int index) const {
  return Ip(host(index), "link set lo up\naddr add " + AddressOf(index) +
                             "/24 dev eth0\nlink set eth0 addrgenmode none up\n");
}

// A program that asks for the address of its own host's name shall get the one that others reach.
Status LinkedHosts::State::NameHost(int index) const {
  char own[256] = {};
  gethostname(own, sizeof own - 1);
  std::string lines = "127.0.0.1 localhost\n" + AddressOf(index) + " " + own + "\n";
  for (int i = 0; i < options.hosts; ++i) {
    lines += AddressOf(i) + " host" + std::to_string(i) + "\n";
  }
  return namespaces->SetHostNames(static_cast<size_t>(index) + 1, lines);
}

Status LinkedHosts::State::Limit(const std::string& name,
                                 const std::vector<std::string>& devices) const {
  std::string commands;
  for (const std::string& device : devices) {
    commands += "qdisc add dev " + device + " root tbf rate " +
                std::to_string(static_cast<int64_t>(facts.bits_per_second)) + "bit burst " +
                std::to_string(options.burst_bytes) + "b limit " +
                std::to_string(options.limit_bytes) + "b\n";
  }
  return RunProgram({programs.tc, "-n", name, "-batch", "-"}, commands).status();
}

Status LinkedHosts::State::RouteAll(const std::string& how) const {
  for (int i = 0; i < options.hosts; ++i) {
    ENGINE_RETURN_IF_ERROR(Ip(host(i), "route replace " + std::string(kSubnet) + " dev eth0 src " +
                                           AddressOf(i) + how + "\n"));
  }
  return {};
}

Result<std::string> LinkedHosts::State::DefaultCongestion() const {
  ENGINE_ASSIGN_OR_RETURN(std::string name,
                          RunProgram({programs.ip, "netns", "exec", host(0), FindProgram("cat"),
                                      "/proc/sys/net/ipv4/tcp_congestion_control"}));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

// A kernel without that congestion control refuses the route; the links then work with its default,
// which the facts tell.
Status LinkedHosts::State::MakeRoutes() {
  facts.congestion = options.congestion;
  facts.quick_ack = true;
  if (RouteAll(" congctl " + options.congestion + " quickack 1").ok()) return {};
  ENGINE_ASSIGN_OR_RETURN(facts.congestion, DefaultCongestion());
  return RouteAll(" quickack 1");
}

LinkCounters Difference(const LinkCounters& before, const LinkCounters& after) {
  return {.sent_bytes = after.sent_bytes - before.sent_bytes,
          .sent_packets = after.sent_packets - before.sent_packets,
          .dropped_packets = after.dropped_packets - before.dropped_packets};
}

LinkedHosts::LinkedHosts(std::unique_ptr<State> state) : state_(std::move(state)) {}
LinkedHosts::~LinkedHosts() = default;

Result<std::unique_ptr<LinkedHosts>> LinkedHosts::Create(const LinkOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(options));
  auto state = std::make_unique<State>();
  state->options = options;
  state->facts = {.burst_bytes = options.burst_bytes, .limit_bytes = options.limit_bytes};
  ENGINE_ASSIGN_OR_RETURN(state->facts.bits_per_second, ParseRate(options.rate));
  state->facts.goodput_bits_per_second = state->facts.bits_per_second * kPayloadShare;
  ENGINE_ASSIGN_OR_RETURN(state->programs, FindPrograms());
  ENGINE_RETURN_IF_ERROR(RemoveStaleNamespaces(state->programs.ip));
  std::vector<std::string> suffixes = {"switch"}, ports;
  for (int i = 0; i < options.hosts; ++i) {
    suffixes.push_back("host" + std::to_string(i));
    ports.push_back(Port(i));
  }
  ENGINE_ASSIGN_OR_RETURN(state->namespaces, Namespaces::Create(state->programs.ip, suffixes));
  ENGINE_RETURN_IF_ERROR(state->MakeSwitch());
  ENGINE_RETURN_IF_ERROR(state->Limit(state->namespaces->names()[0], ports));
  for (int i = 0; i < options.hosts; ++i) {
    ENGINE_RETURN_IF_ERROR(state->MakeHost(i));
    ENGINE_RETURN_IF_ERROR(state->NameHost(i));
    ENGINE_RETURN_IF_ERROR(state->Limit(state->host(i), {"eth0"}));
  }
  ENGINE_RETURN_IF_ERROR(state->MakeRoutes());
  return std::unique_ptr<LinkedHosts>(new LinkedHosts(std::move(state)));
}

int LinkedHosts::hosts() const {
  return state_->options.hosts;
}

const LinkFacts& LinkedHosts::facts() const {
  return state_->facts;
}

std::vector<std::string> LinkedHosts::CommandPrefix(int host) const {
  ENGINE_CHECK(host >= 0 && host < hosts(), "host %d of %d", host, hosts());
  return {state_->programs.ip, "netns", "exec", state_->host(host)};
}

std::string LinkedHosts::Address(int host) const {
  ENGINE_CHECK(host >= 0 && host < hosts(), "host %d of %d", host, hosts());
  return AddressOf(host);
}

Result<LinkCounters> LinkedHosts::Counters() const {
  LinkCounters sum;
  int buckets = 0;
  for (const std::string& name : state_->namespaces->names()) {
    ENGINE_ASSIGN_OR_RETURN(const std::string text,
                            RunProgram({state_->programs.tc, "-n", name, "-s", "-j", "qdisc"}));
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
