// What linked_hosts_test runs in processes of their own.
//
//   link_probe serve PORT                    one TCP peer of `send`; prints "ready"
//   link_probe send ADDRESS PORT BYTES       prints "rtt_us X", "seconds X", "congestion NAME"
//   link_probe flood ADDRESS PORT COUNT      datagrams of 1,400 bytes, as fast as it can
//   link_probe own RATE                      two linked hosts with a sleeping process in the first;
//                                            prints "host NAME", "sleeper PID", and waits
//   link_probe refuse                        tries it as a user without rights; prints "error TEXT"
//
// What fails is printed as "failed WHAT: WHY".
#include <netinet/tcp.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <chrono>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/link/linked_hosts.h"

namespace engine::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using asio::ip::udp;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
constexpr int kPings = 101;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

uint16_t Port(const std::string& text) {
  return static_cast<uint16_t>(std::stoi(text));
}

// Echoes the pings; then takes everything up to the end of the stream, and says so.
void Serve(const Words& words) {
  asio::io_context context;
  tcp::acceptor acceptor(context, {tcp::v4(), Port(words[1])});
  std::cout << "ready" << std::endl;
  tcp::socket peer = acceptor.accept();
  peer.set_option(tcp::no_delay(true));
  char ping = 0;
  for (int i = 0; i < kPings; ++i) {
    asio::read(peer, asio::buffer(&ping, 1));
    asio::write(peer, asio::buffer(&ping, 1));
  }
  std::vector<char> taken(size_t{256} << 10);
  boost::system::error_code end;
  while (!end) peer.read_some(asio::buffer(taken), end);
  if (end != asio::error::eof) throw boost::system::system_error(end, "receive");
  asio::write(peer, asio::buffer(&ping, 1));
}

double MedianRoundTrip(tcp::socket& socket) {
  std::vector<double> times;
  for (int i = 0; i < kPings; ++i) {
    char ping = 1;
    const auto start = Clock::now();
    asio::write(socket, asio::buffer(&ping, 1));
    asio::read(socket, asio::buffer(&ping, 1));
    times.push_back(Seconds(start));
  }
  std::nth_element(times.begin(), times.begin() + kPings / 2, times.end());
  return times[kPings / 2];
}

void Send(const Words& words) {
  asio::io_context context;
  tcp::socket socket(context);
  socket.connect({asio::ip::make_address(words[1]), Port(words[2])});
  socket.set_option(tcp::no_delay(true));
  std::cout << "rtt_us " << 1e6 * MedianRoundTrip(socket) << '\n';
  char congestion[32] = {};
  socklen_t length = sizeof congestion;
  getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, congestion, &length);
  std::cout << "congestion " << congestion << '\n';
  const std::vector<char> bytes(std::stoul(words[3]), 'x');
  const auto start = Clock::now();
  asio::write(socket, asio::buffer(bytes));
  socket.shutdown(tcp::socket::shutdown_send);
  char done = 0;
  asio::read(socket, asio::buffer(&done, 1));
  std::cout << "seconds " << Seconds(start) << '\n';
}

void Flood(const Words& words) {
  asio::io_context context;
  udp::socket socket(context, udp::v4());
  const udp::endpoint to(asio::ip::make_address(words[1]), Port(words[2]));
  const std::vector<char> datagram(1400, 'x');
  for (int i = std::stoi(words[3]); i > 0; --i) {
    // ENOBUFS and ECONNREFUSED are as good as sent: nobody listens, and full queues are the point.
    boost::system::error_code ignored;
    socket.send_to(asio::buffer(datagram), to, 0, ignored);
  }
}

void Own(const Words& words) {
  const auto hosts = LinkedHosts::Create({.rate = words[1]});
  if (!hosts.ok()) throw std::runtime_error(hosts.status().message());
  for (int i = 0; i < (*hosts)->hosts(); ++i) {
    std::cout << "host " << (*hosts)->CommandPrefix(i).back() << '\n';
  }
  Words command = (*hosts)->CommandPrefix(0);
  command.insert(command.end(), {"sleep", "1000"});
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t sleeper = 0;
  if (posix_spawnp(&sleeper, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
    throw std::runtime_error("spawn");
  }
  std::cout << "sleeper " << sleeper << std::endl;
  pause();
}

void Refuse(const Words&) {
  constexpr uid_t kNobody = 65534;
  if (setresuid(kNobody, kNobody, kNobody) != 0) throw std::runtime_error("setresuid");
  const auto hosts = LinkedHosts::Create({});
  std::cout << "error " << (hosts.ok() ? "" : hosts.status().message()) << '\n';
}

int Main(const Words& words) {
  struct Mode {
    std::string name;
    size_t words;
    void (*run)(const Words&);
  };
  for (const Mode& mode : {Mode{"serve", 2, Serve}, Mode{"send", 4, Send}, Mode{"flood", 4, Flood},
                           Mode{"own", 2, Own}, Mode{"refuse", 1, Refuse}}) {
    if (words.size() != mode.words || words[0] != mode.name) continue;
    try {
      mode.run(words);
      return 0;
    } catch (const std::exception& error) {
      std::cout << "failed " << error.what() << '\n';
      return 1;
    }
  }
  return 2;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Main({argv + 1, argv + argc});
}
