// Push and pull of one tensor between one worker and one parameter server of the plugin zmq_ps, two
// processes with a core each, on loopback, beside a bare pair of ZeroMQ sockets that moves the same
// frames there and back without copying them.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target zmq_round_trip
//   build/bench/bench/zmq_round_trip [repeats [KiB of a slice [KiB of a socket buffer]]]
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {
namespace {

// The plugin's defaults; constant from the start of main on.
FlowSettings sizes{.slice_bytes = 512 << 10, .buffer_bytes = 1 << 20};

constexpr size_t kHeaderBytes = sizeof(Header);
const KeyPair kPassword{.public_key = "of this pair of processes"};

double Microseconds(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Keep(void*, void*) {}

// One of the cores that this process may use.
void UseCore(size_t number) {
  cpu_set_t allowed, own;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  CPU_ZERO(&own);
  for (size_t core = 0, left = number; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
    CPU_SET(core, &own);
    (void)sched_setaffinity(0, sizeof(own), &own);
    return;
  }
}

void SetBuffers(::zmq::socket_t& socket) {
  socket.set(::zmq::sockopt::sndbuf, sizes.buffer_bytes);
  socket.set(::zmq::sockopt::rcvbuf, sizes.buffer_bytes);
  socket.set(::zmq::sockopt::linger, 0);
}

// The other process: a server of the plugin, and a bare router that sends every message back as it
// is. Says where they are on `out`, ends at the end of `in`.
class Servers {
 public:
  Servers() : context_(1), router_(context_, ZMQ_ROUTER) {
    SetBuffers(router_);
    router_.bind("tcp://127.0.0.1:*");
    auto started = Server::Start({.endpoint = "tcp://127.0.0.1:*",
                                  .worker_keys = {kPassword.public_key},
                                  .connection = {.flow = sizes}});
    ENGINE_CHECK(started.ok(), "%s", started.status().message());
    server_ = std::move(*started);
  }

  void Run(int in, int out) {
    const std::string places =
        router_.get(::zmq::sockopt::last_endpoint) + " " + server_->endpoint() + "\n";
    ENGINE_CHECK(write(out, places.data(), places.size()) > 0, "no pipe");
    std::thread echo([this] { Echo(); });
    char byte = 0;
    while (read(in, &byte, 1) > 0) {
    }
    context_.shutdown();
    echo.join();
    const Traffic& traffic = server_->traffic();
    std::printf("frames / tensor bytes: %.5f in, %.5f out\n",
                static_cast<double>(traffic.frames_in) / static_cast<double>(traffic.payload_in),
                static_cast<double>(traffic.frames_out) / static_cast<double>(traffic.payload_out));
    server_->Stop(1000);
  }

 private:
  void Echo() try {
    while (true) {
      ::zmq::message_t id, header, body;
      (void)router_.recv(id);
      (void)router_.recv(header);
      (void)router_.recv(body);
      router_.send(id, ::zmq::send_flags::sndmore);
      router_.send(header, ::zmq::send_flags::sndmore);
      router_.send(body, ::zmq::send_flags::none);
    }
  } catch (const ::zmq::error_t& error) {
    ENGINE_CHECK(error.num() == ETERM, "%s", error.what());
    router_.close();
  }

  ::zmq::context_t context_;
  ::zmq::socket_t router_;
  std::unique_ptr<Server> server_;
};

// A dealer that sends slices of a buffer to the bare router.
class BareDealer {
 public:
  explicit BareDealer(const std::string& endpoint) : context_(1), dealer_(context_, ZMQ_DEALER) {
    SetBuffers(dealer_);
    dealer_.connect(endpoint);
  }

  // Copies what comes back to `result` unless it is null.
  void RoundTrip(std::vector<float>& data, std::vector<float>* result) {
    const size_t bytes = data.size() * sizeof(float);
    const std::string header(kHeaderBytes, 'h');
    size_t slices = 0;
    for (size_t offset = 0; offset < bytes; offset += sizes.slice_bytes, ++slices) {
      ::zmq::message_t body(reinterpret_cast<char*>(data.data()) + offset,
                            std::min<size_t>(sizes.slice_bytes, bytes - offset), Keep);
      dealer_.send(::zmq::buffer(header), ::zmq::send_flags::sndmore);
      dealer_.send(body, ::zmq::send_flags::none);
    }
    ::zmq::message_t frame;
    for (size_t i = 0; i < slices; ++i) {
      (void)dealer_.recv(frame);
      (void)dealer_.recv(frame);
      if (!result) continue;
      std::memcpy(reinterpret_cast<char*>(result->data()) + i * sizes.slice_bytes, frame.data(),
                  frame.size());
    }
  }

 private:
  ::zmq::context_t context_;
  ::zmq::socket_t dealer_;
};

class PluginWorker {
 public:
  explicit PluginWorker(const std::string& endpoint) {
    auto connected = Worker::Connect({.keys = kPassword,
                                      .servers = {{.endpoint = endpoint, .rank = 0}},
                                      .connection = {.flow = sizes},
                                      .gate = &works_.gate()},
                                     kit::DeadlineIn(10000));
    ENGINE_CHECK(connected.ok(), "%s", connected.status().message());
    worker_ = std::move(*connected);
  }

  void RoundTrip(const std::vector<float>& data, std::vector<float>& result) {
    TransferWork* const work = *works_.Take({.send = data.data(),
                                             .recv = result.data(),
                                             .count = static_cast<int64_t>(data.size()),
                                             .key = data.size()});
    Status status = worker_->Submit(work);
    if (status.ok()) status = work->WaitHost(30000);
    ENGINE_CHECK(status.ok(), "%s", status.message());
    work->Release();
  }

 private:
  Works works_;
  std::unique_ptr<Worker> worker_;
};

void CompareRoundTrips(int repeats, const std::string& router, const std::string& server) {
  BareDealer bare(router);
  PluginWorker plugin(server);
  std::printf("%10s %10s %10s %10s %7s %7s\n", "bytes", "bare us", "+ copy us", "zmq_ps us",
              "/ bare", "/ copy");
  for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20}) {
    std::vector<float> data(bytes / sizeof(float)), result(data.size());
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1000);
    std::vector<double> bare_us, copy_us, plugin_us;
    for (int i = -5; i < repeats; ++i) {  // in turns, so that all see the same machine
      const auto time = [&](const std::function<void()>& body) {
        std::fill(result.begin(), result.end(), -1.0f);  // also makes all start with equal caches
        return Microseconds(body);
      };
      const double a = time([&] { bare.RoundTrip(data, nullptr); });
      const double b = time([&] { bare.RoundTrip(data, &result); });
      const double c = time([&] { plugin.RoundTrip(data, result); });
      ENGINE_CHECK(result == data, "a sum over one worker is its own push");
      if (i < 0) continue;
      bare_us.push_back(a);
      copy_us.push_back(b);
      plugin_us.push_back(c);
    }
    const double a = Median(bare_us), b = Median(copy_us), c = Median(plugin_us);
    std::printf("%10zu %10.0f %10.0f %10.0f %7.2f %7.2f\n", bytes, a, b, c, c / a, c / b);
  }
}

// The servers in a process and on a core of their own, as they are where it matters.
void CompareWithServers(int repeats) {
  int to_child[2], from_child[2];
  ENGINE_CHECK(pipe(to_child) == 0 && pipe(from_child) == 0, "no pipes");
  const pid_t child = fork();
  ENGINE_CHECK(child >= 0, "no process");
  if (child == 0) {
    close(to_child[1]);
    UseCore(1);
    Servers().Run(to_child[0], from_child[1]);
    std::fflush(stdout);
    _exit(0);
  }
  close(to_child[0]);
  UseCore(0);
  char text[256] = {};
  ENGINE_CHECK(read(from_child[0], text, sizeof(text) - 1) > 0, "the servers did not start");
  std::istringstream places(text);
  std::string router, server;
  places >> router >> server;
  CompareRoundTrips(repeats, router, server);
  std::fflush(stdout);
  close(to_child[1]);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace engine::zmq_ps

int main(int argc, char** argv) {
  // As the engine does.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const int repeats = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 50;
  if (argc > 2) engine::zmq_ps::sizes.slice_bytes = std::strtoull(argv[2], nullptr, 10) << 10;
  if (argc > 3) engine::zmq_ps::sizes.buffer_bytes = std::atoi(argv[3]) << 10;
  engine::zmq_ps::CompareWithServers(repeats);
  return 0;
}
