// Several hosts on one machine: network namespaces joined by rate-limited virtual links.
//
//   namespace host 0          namespace switch           namespace host 1
//   eth0 (tbf) ───────────── port0 (tbf) ─ bridge ─ (tbf) port1 ───────────── (tbf) eth0
//
// Each link is limited in both directions by a token bucket (tc-tbf(8)) at the sending end. A
// process in host i reaches host j under Address(j) and nothing else: not the machine's own
// network. docs/benchmarking.md says what this can and cannot show.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/link/namespaces.h"
#include "engine/status.h"

namespace engine::bench {

constexpr int kMaxLinkedHosts = 64;
struct LinkOptions {
  int hosts = 2;                     // 1 .. kMaxLinkedHosts
  int ranks_per_host = 1;            // of who starts ranks on all of them
  std::string rate = "1gbit";        // of each link, each way: a number and kbit, mbit or gbit
  int64_t burst_bytes = 256 << 10;   // of the token bucket
  int64_t limit_bytes = 2 << 20;     // that may wait in front of it; what is more is dropped
  std::string congestion = "cubic";  // TCP congestion control between the hosts
};

// How the links are, for a report.
struct LinkFacts {
  double bits_per_second = 0;          // of each link, each way, as given to the token bucket
  double goodput_bits_per_second = 0;  // of TCP at best: 1448 of each 1514 bytes are payload
  std::string congestion;  // the one in use: the kernel may not have the one that was asked for
};

// Sums over all token buckets since the hosts were made.
struct LinkCounters {
  uint64_t sent_bytes = 0;  // headers included; a byte from host to host counts twice, once on
                            // each of its two links
  uint64_t sent_packets = 0;
  uint64_t dropped_packets = 0;  // of a run, this must be 0: a run with drops measures the buffer
};

// What was counted between `before` and `after`.
LinkCounters Difference(const LinkCounters& before, const LinkCounters& after);

// "375mbit" -> 375e6. kInvalidArgument says what a rate looks like.
Result<double> ParseRate(std::string_view text);

// Owns namespaces, links and everything that runs in them. Not thread-safe. What it made is removed
//   - by the destructor,
//   - when this process ends in any other way, SIGKILL included, by a small process that waits for
//     that in a session of its own,
//   - at the latest by the next Create() on this machine, should that process be killed as well.
// In each case processes that still run in the namespaces are killed first.
class LinkedHosts {
 public:
  // Needs root and the programs ip and tc. Takes about 50 ms for two hosts. kUnsupported says what
  // is missing and what to do; kInvalidArgument names the wrong option.
  static Result<std::unique_ptr<LinkedHosts>> Create(const LinkOptions& options);
  LinkedHosts(const LinkedHosts&) = delete;
  LinkedHosts& operator=(const LinkedHosts&) = delete;

  int hosts() const { return options_.hosts; }
  const LinkFacts& facts() const { return facts_; }
  // What to put in front of a program and its arguments so that it runs on `host`:
  // {"ip", "netns", "exec", name}. It keeps the pid (it ends in exec), environment, working
  // directory and open files.
  std::vector<std::string> CommandPrefix(int host) const;
  // Of `host`, for the others and for itself: "10.0.0.1" for host 0. Inside the hosts it also has
  // the name "host0", and is what the machine's own name stands for there.
  std::string Address(int host) const;
  // kInternal when the kernel does not answer as expected.
  Result<LinkCounters> Counters() const;

 private:
  explicit LinkedHosts(const LinkOptions& options);
  Status Make();
  Status MakeSwitch() const;
  Status MakeHost(int index) const;
  Status NameHost(int index) const;
  Status Limit(const std::string& name, const std::vector<std::string>& devices) const;
  Status MakeRoutes();
  Status RouteAll(const std::string& how) const;
  Result<std::string> DefaultCongestion() const;
  // Has ip carry out `commands` in the namespace `name`.
  Status Ip(const std::string& name, const std::string& commands) const;
  const std::string& host(int index) const { return namespaces_->names()[index + 1]; }

  const LinkOptions options_;
  const std::string ip_, tc_;  // paths of the programs
  LinkFacts facts_;
  std::unique_ptr<Namespaces> namespaces_;  // of the switch, then of the hosts
};

}  // namespace engine::bench
