// What linked_hosts_test runs in processes of their own.
//
//   link_probe serve PORT                    one TCP peer of `send`; prints "ready"
//   link_probe send ADDRESS PORT BYTES       prints "rtt_us X", "seconds X", "congestion NAME"
//   link_probe flood ADDRESS PORT COUNT      datagrams of 1,400 bytes, as fast as it can
//   link_probe own RATE                      two linked hosts with a sleeping process in the first;
//                                            prints "host NAME", "sleeper PID", and waits
//   link_probe refuse                        tries it as a user without rights; prints "error TEXT"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPings = 101;

[[noreturn]] void Fail(const char* what) {
  std::printf("failed %s: %s\n", what, strerror(errno));
  std::exit(1);
}

int Require(int result, const char* what) {
  if (result < 0) Fail(what);
  return result;
}

sockaddr_in AddressOf(const char* address, const char* port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  if (inet_pton(AF_INET, address, &where.sin_addr) != 1) Fail("address");
  return where;
}

void SetDeadline(int fd) {
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  Require(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "deadline");
  Require(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), "deadline");
  const int yes = 1;
  Require(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), "no delay");
}

void ReceiveAll(int fd, void* data, size_t size) {
  if (recv(fd, data, size, MSG_WAITALL) != static_cast<ssize_t>(size)) Fail("receive");
}

void SendAll(int fd, const std::vector<char>& data) {
  for (size_t sent = 0; sent < data.size();) {
    const ssize_t count = send(fd, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) Fail("send");
    sent += static_cast<size_t>(count);
  }
}

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Echoes the pings; then takes everything up to the end of the stream, and says so.
int Serve(const char* port) {
  const int listener = Require(socket(AF_INET, SOCK_STREAM, 0), "socket");
  const int yes = 1;
  Require(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), "reuse");
  const sockaddr_in where = AddressOf("0.0.0.0", port);
  Require(bind(listener, reinterpret_cast<const sockaddr*>(&where), sizeof where), "bind");
  Require(listen(listener, 1), "listen");
  std::printf("ready\n");
  std::fflush(stdout);
  const int peer = Require(accept(listener, nullptr, nullptr), "accept");
  SetDeadline(peer);
  char ping = 0;
  for (int i = 0; i < kPings; ++i) {
    ReceiveAll(peer, &ping, 1);
    SendAll(peer, {ping});
  }
  std::vector<char> buffer(size_t{256} << 10);
  ssize_t count = 0;
  while ((count = recv(peer, buffer.data(), buffer.size(), 0)) > 0) {
  }
  Require(static_cast<int>(count), "receive");
  SendAll(peer, {ping});
  return 0;
}

double MedianRoundTrip(int fd) {
  std::vector<double> times;
  for (int i = 0; i < kPings; ++i) {
    char ping = 1;
    const auto start = Clock::now();
    SendAll(fd, {ping});
    ReceiveAll(fd, &ping, 1);
    times.push_back(Seconds(start));
  }
  std::nth_element(times.begin(), times.begin() + kPings / 2, times.end());
  return times[kPings / 2];
}

int Send(const char* address, const char* port, size_t bytes) {
  const int fd = Require(socket(AF_INET, SOCK_STREAM, 0), "socket");
  SetDeadline(fd);
  const sockaddr_in where = AddressOf(address, port);
  Require(connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where), "connect");
  std::printf("rtt_us %.1f\n", 1e6 * MedianRoundTrip(fd));
  char congestion[32] = {};
  socklen_t length = sizeof congestion;
  Require(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, &length), "congestion");
  std::printf("congestion %s\n", congestion);
  const auto start = Clock::now();
  SendAll(fd, std::vector<char>(bytes, 'x'));
  Require(shutdown(fd, SHUT_WR), "shutdown");
  char done = 0;
  ReceiveAll(fd, &done, 1);
  std::printf("seconds %.6f\n", Seconds(start));
  return 0;
}

int Flood(const char* address, const char* port, int count) {
  const int fd = Require(socket(AF_INET, SOCK_DGRAM, 0), "socket");
  const sockaddr_in where = AddressOf(address, port);
  const std::vector<char> datagram(1400, 'x');
  for (int i = 0; i < count; ++i) {
    // ENOBUFS and ECONNREFUSED are as good as sent: nobody listens, and full queues are the point.
    (void)sendto(fd, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&where),
                 sizeof where);
  }
  return 0;
}

pid_t StartSleeper(const LinkedHosts& hosts) {
  std::vector<std::string> command = hosts.CommandPrefix(0);
  command.insert(command.end(), {"sleep", "1000"});
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = Require(fork(), "fork");
  if (pid == 0) {
    execvp(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

int Own(const char* rate) {
  auto hosts = LinkedHosts::Create({.rate = rate});
  if (!hosts.ok()) {
    std::printf("error %s\n", hosts.status().message());
    return 1;
  }
  for (int i = 0; i < (*hosts)->hosts(); ++i) {
    std::printf("host %s\n", (*hosts)->CommandPrefix(i).back().c_str());
  }
  std::printf("sleeper %d\n", StartSleeper(**hosts));
  std::fflush(stdout);
  pause();
  return 0;
}

int Refuse() {
  constexpr uid_t kNobody = 65534;
  Require(setresuid(kNobody, kNobody, kNobody), "setresuid");
  const auto hosts = LinkedHosts::Create({});
  std::printf("error %s\n", hosts.ok() ? "" : hosts.status().message());
  return 0;
}

int Main(const std::vector<const char*>& arguments) {
  const std::string mode = arguments.size() > 1 ? arguments[1] : "";
  if (mode == "serve" && arguments.size() == 3) return Serve(arguments[2]);
  if (mode == "send" && arguments.size() == 5) {
    return Send(arguments[2], arguments[3], static_cast<size_t>(std::atoll(arguments[4])));
  }
  if (mode == "flood" && arguments.size() == 5) {
    return Flood(arguments[2], arguments[3], std::atoi(arguments[4]));
  }
  if (mode == "own" && arguments.size() == 3) return Own(arguments[2]);
  if (mode == "refuse" && arguments.size() == 2) return Refuse();
  return 2;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Main({argv, argv + argc});
}
