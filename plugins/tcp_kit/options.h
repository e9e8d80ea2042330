// The options of a communicator over TCP.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "engine/options.h"
#include "kit/options.h"
#include "tcp_kit/connections.h"

namespace engine::tcp {

inline constexpr std::array kNetworkOptions{
    kit::IntOption("io_threads", "2", 1, 16,
                   "transfers that run at once, each on a thread and connections of its own"),
    kit::StringOption("interface", "",
                      "network interface to use; empty: loopback when all ranks are on one "
                      "host, else the address of hostname"),
    kit::StringOption("hostname", "",
                      "own name or address to use; empty: where the rendezvous sees this host"),
    kit::StringOption("congestion_control", "",
                      "TCP congestion control of the connections, bbr for example; empty: "
                      "cubic on the loopback interface where the kernel has it, else the host's"),
    kit::StringOption("key_file", "",
                      "file of at least 32 random bytes, the same on all ranks: only who has it "
                      "can connect to a rank")};

// These and one more.
constexpr auto NetworkOptionsAnd(const OptionSpec& one) {
  std::array<OptionSpec, kNetworkOptions.size() + 1> all{};
  std::copy(kNetworkOptions.begin(), kNetworkOptions.end(), all.begin());
  all.back() = one;
  return all;
}

inline NetworkSettings NetworkOf(const Options& options, const char* plugin) {
  return {.plugin = plugin,
          .lanes = static_cast<int>(options.Int("io_threads")),
          .interface = std::string(options.String("interface")),
          .hostname = std::string(options.String("hostname")),
          .congestion_control = std::string(options.String("congestion_control")),
          .key_file = std::string(options.String("key_file"))};
}

}  // namespace engine::tcp
