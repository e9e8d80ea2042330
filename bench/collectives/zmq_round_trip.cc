// Push and pull of one tensor between one worker and one parameter server of the plugin zmq_ps, on
// loopback, beside a bare pair of ZeroMQ sockets that moves the same frames there and back without
// copying them; and the server's addition beside a plain loop.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target zmq_round_trip
//   build/bench/bench/zmq_round_trip [repeats]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reduce_pool.h"
#include "server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {
namespace {

constexpr uint64_t kSliceBytes = 512 << 10;
constexpr int kBufferBytes = 1 << 20;
constexpr size_t kHeaderBytes = 60;  // of a push's header

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

// A dealer that sends slices of a buffer and a router that sends every message back as it is.
class BarePair {
 public:
  BarePair() : context_(2), dealer_(context_, ZMQ_DEALER), router_(context_, ZMQ_ROUTER) {
    for (::zmq::socket_t* socket : {&dealer_, &router_}) {
      socket->set(::zmq::sockopt::sndbuf, kBufferBytes);
      socket->set(::zmq::sockopt::rcvbuf, kBufferBytes);
      socket->set(::zmq::sockopt::linger, 0);
    }
    router_.bind("tcp://127.0.0.1:*");
    dealer_.connect(router_.get(::zmq::sockopt::last_endpoint));
    thread_ = std::thread([this] { Echo(); });
  }
  ~BarePair() {
    dealer_.send(::zmq::str_buffer("end"), ::zmq::send_flags::none);
    thread_.join();
  }

  // Copies what comes back to `result` unless it is null.
  void RoundTrip(std::vector<float>& data, std::vector<float>* result) {
    const size_t bytes = data.size() * sizeof(float);
    const std::string header(kHeaderBytes, 'h');
    size_t slices = 0;
    for (size_t offset = 0; offset < bytes; offset += kSliceBytes, ++slices) {
      ::zmq::message_t body(reinterpret_cast<char*>(data.data()) + offset,
                            std::min<size_t>(kSliceBytes, bytes - offset), Keep);
      dealer_.send(::zmq::buffer(header), ::zmq::send_flags::sndmore);
      dealer_.send(body, ::zmq::send_flags::none);
    }
    ::zmq::message_t frame;
    for (size_t i = 0; i < slices; ++i) {
      (void)dealer_.recv(frame);
      (void)dealer_.recv(frame);
      if (!result) continue;
      std::memcpy(reinterpret_cast<char*>(result->data()) + i * kSliceBytes, frame.data(),
                  frame.size());
    }
  }

 private:
  void Echo() {
    while (true) {
      ::zmq::message_t id, header, body;
      (void)router_.recv(id);
      (void)router_.recv(header);
      if (!header.more()) return;
      (void)router_.recv(body);
      router_.send(id, ::zmq::send_flags::sndmore);
      router_.send(header, ::zmq::send_flags::sndmore);
      router_.send(body, ::zmq::send_flags::none);
    }
  }

  ::zmq::context_t context_;
  ::zmq::socket_t dealer_, router_;
  std::thread thread_;
};

struct Pair {
  std::unique_ptr<Server> server;
  std::unique_ptr<Worker> worker;
  std::shared_ptr<WorkPool> pool = std::make_shared<WorkPool>();

  Pair() {
    auto started = Server::Start({.endpoint = "tcp://127.0.0.1:*",
                                  .slice_bytes = kSliceBytes,
                                  .buffer_bytes = kBufferBytes});
    ENGINE_CHECK(started.ok(), "%s", started.status().message());
    server = std::move(*started);
    auto connected = Worker::Connect({.servers = {{.endpoint = server->endpoint(), .rank = 0}},
                                      .slice_bytes = kSliceBytes,
                                      .buffer_bytes = kBufferBytes},
                                     DeadlineIn(10000));
    ENGINE_CHECK(connected.ok(), "%s", connected.status().message());
    worker = std::move(*connected);
  }
  ~Pair() {
    worker.reset();
    server->Stop(1000);
  }

  void RoundTrip(const std::vector<float>& data, std::vector<float>& result) {
    PooledWork* const work = pool->Take({.send = data.data(),
                                         .recv = result.data(),
                                         .count = static_cast<int64_t>(data.size()),
                                         .key = data.size()});
    Status status = worker->Submit(work);
    if (status.ok()) status = work->WaitHost(30000);
    ENGINE_CHECK(status.ok(), "%s", status.message());
    work->Release();
  }
};

void CompareRoundTrips(int repeats) {
  BarePair bare;
  Pair pair;
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
      const double c = time([&] { pair.RoundTrip(data, result); });
      ENGINE_CHECK(result == data, "a sum over one worker is its own push");
      if (i < 0) continue;
      bare_us.push_back(a);
      copy_us.push_back(b);
      plugin_us.push_back(c);
    }
    const double a = Median(bare_us), b = Median(copy_us), c = Median(plugin_us);
    std::printf("%10zu %10.0f %10.0f %10.0f %7.2f %7.2f\n", bytes, a, b, c, c / a, c / b);
  }
  const ServerTraffic traffic = pair.server->traffic();
  std::printf("frames / tensor bytes: %.5f in, %.5f out\n",
              static_cast<double>(traffic.frames_in) / static_cast<double>(traffic.payload_in),
              static_cast<double>(traffic.frames_out) / static_cast<double>(traffic.payload_out));
}

__attribute__((noinline)) void PlainAdd(float* sum, const float* x, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += x[i];
}

// The second push of a slice, as the server adds it to the first. A ring of slices that no cache
// holds.
void CompareAdditions(int repeats) {
  constexpr size_t kCount = kSliceBytes / sizeof(float), kSlices = 128;
  std::vector<std::vector<float>> sums(kSlices, std::vector<float>(kCount, 1.0f)), inputs = sums;
  std::vector<double> plain_us, server_us;
  for (int i = 0; i < repeats; ++i) {
    plain_us.push_back(Microseconds([&] {
      for (size_t s = 0; s < kSlices; ++s) PlainAdd(sums[s].data(), inputs[s].data(), kCount);
    }));
    std::vector<ReduceTask> tasks(kSlices);
    for (size_t s = 0; s < kSlices; ++s) {
      tasks[s].kernels = &KernelsFor(DType::kFloat32, Reduction::kSum);
      tasks[s].count = kCount;
      tasks[s].accumulator.rebuild(sums[s].data(), kSliceBytes, Keep);
      tasks[s].inputs.emplace_back(inputs[s].data(), kSliceBytes, Keep);
    }
    server_us.push_back(Microseconds([&] {
      for (ReduceTask& task : tasks) Run(task);
    }));
  }
  const double bytes = static_cast<double>(kSlices * kSliceBytes);
  const double plain = bytes / Median(plain_us), ours = bytes / Median(server_us);
  std::printf("addition, GB of input/s: plain loop %.2f, server %.2f (%.0f %%)\n", plain / 1e3,
              ours / 1e3, 100 * ours / plain);
}

}  // namespace
}  // namespace engine::zmq_ps

int main(int argc, char** argv) {
  // As the engine does.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const int repeats = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 50;
  engine::zmq_ps::CompareRoundTrips(repeats);
  engine::zmq_ps::CompareAdditions(repeats);
  return 0;
}
