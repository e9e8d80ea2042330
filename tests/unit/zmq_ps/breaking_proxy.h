// Breaks TCP connections on their way to a server.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kit/unique_fd.h"

namespace engine::zmq_ps {

inline int PortOf(const std::string& endpoint) {
  return std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
}

inline sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A socket that is connected to a port of this host; none if it is not.
inline kit::UniqueFd ConnectTo(int port) {
  const sockaddr_in address = Loopback(port);
  kit::UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  return connect(fd.get(), generic, sizeof(address)) == 0 ? std::move(fd) : kit::UniqueFd();
}

// Passes TCP connections on to a server, and breaks each after some bytes have gone to the server.
class BreakingProxy {
 public:
  explicit BreakingProxy(const std::string& server, size_t break_after_bytes = SIZE_MAX)
      : server_port_(PortOf(server)),
        break_after_bytes_(break_after_bytes),
        listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Loop(); });
  }
  ~BreakingProxy() {
    stop_ = true;
    thread_.join();
  }

  const std::string& endpoint() const { return endpoint_; }
  int breaks() const { return breaks_; }
  void BreakNoMore() { break_after_bytes_ = SIZE_MAX; }
  // A slow link from now on: 2 MB a second, of both directions together.
  void SlowDown() { is_slow_ = true; }
  // Nothing passes any more, as if the other side had stopped without closing its connections.
  void Freeze() { frozen_ = true; }

 private:
  struct Connection {
    kit::UniqueFd client, server;
    size_t bytes = 0;
  };

  void Loop() {
    while (!stop_) {
      if (frozen_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      std::vector<pollfd> items = {{listener_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        items.push_back({connection.client.get(), POLLIN, 0});
        items.push_back({connection.server.get(), POLLIN, 0});
      }
      poll(items.data(), items.size(), 10);
      const size_t known = connections_.size();
      for (size_t i = 0; i < known; ++i) {
        Connection& connection = connections_[i];
        bool alive = true;
        if (items[1 + 2 * i].revents) {
          alive = Pass(connection.client, connection.server, &connection.bytes);
        }
        size_t unused = 0;
        if (items[2 + 2 * i].revents) {
          alive = Pass(connection.server, connection.client, &unused) && alive;
        }
        if (connection.bytes > break_after_bytes_) {
          ++breaks_;
          alive = false;
        }
        if (!alive) connection.client.Close();
      }
      std::erase_if(connections_, [](const Connection& c) { return !c.client; });
      if (items[0].revents) Accept();
    }
  }

  void Accept() {
    Connection connection{.client = kit::UniqueFd(accept(listener_.get(), nullptr, nullptr)),
                          .server = ConnectTo(server_port_)};
    if (connection.server) connections_.push_back(std::move(connection));
  }

  bool Pass(const kit::UniqueFd& from, const kit::UniqueFd& to, size_t* bytes) const {
    static thread_local char buffer[1 << 16];
    const ssize_t got = recv(from.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return false;
    *bytes += static_cast<size_t>(got);
    if (is_slow_) std::this_thread::sleep_for(std::chrono::microseconds(got / 2));
    return send(to.get(), buffer, static_cast<size_t>(got), MSG_NOSIGNAL) == got;
  }

  const int server_port_;
  std::atomic<size_t> break_after_bytes_;
  const kit::UniqueFd listener_;
  std::string endpoint_;
  std::vector<Connection> connections_;  // of the thread
  std::atomic<int> breaks_{0};
  std::atomic<bool> stop_{false}, frozen_{false}, is_slow_{false};
  std::thread thread_;
};

using Proxies = std::vector<std::unique_ptr<BreakingProxy>>;

// For ClusterSettings::route: the workers from `first` on reach each server by a proxy of their
// own.
inline auto RouteBy(Proxies* proxies, uint32_t first = 0, size_t break_after_bytes = SIZE_MAX) {
  return [=](uint32_t worker, const std::string& endpoint) {
    if (worker < first) return endpoint;
    proxies->push_back(std::make_unique<BreakingProxy>(endpoint, break_after_bytes));
    return proxies->back()->endpoint();
  };
}

}  // namespace engine::zmq_ps
