// Servers and workers in one process, on loopback, without a Host.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parameter_client.h"
#include "server.h"
#include "work.h"
#include "worker.h"

namespace engine::zmq_ps {

struct ClusterSettings {
  uint32_t workers = 2;
  uint32_t servers = 2;
  bool encrypt = false;
  uint64_t slice_bytes = 1 << 16;
  uint64_t min_slice_bytes = 1 << 12;
  int reduce_threads = 2;
  int64_t lost_after_ms = 1000;  // of servers
  Heartbeat heartbeat;
  std::optional<ParameterTraits> update;  // servers keep parameters, with a TestOptimizer each
  // The address at which a worker finds the server at `endpoint`. May be empty.
  std::function<std::string(uint32_t worker, const std::string& endpoint)> route;
  // Of one endpoint: servers first, then workers. May be empty.
  std::function<FaultInjector(uint32_t endpoint)> faults;
};

// Every argument but the decay shows in the values.
class TestOptimizer final : public OptimizerBase {
 public:
  OptimizerTraits traits() const noexcept override { return {}; }
  Status Update(const UpdateCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) {
      call.value[i] -= call.learning_rate * call.gradient[i] * call.gradient_scale;
    }
    return {};
  }
};

class Cluster {
 public:
  explicit Cluster(const ClusterSettings& settings);
  ~Cluster();

  bool ok() const { return ok_; }
  Server& server(uint32_t index) { return *servers_[index]; }
  Worker& worker(uint32_t index) { return *workers_[index]; }
  // Of all servers; lives as long as they do.
  Optimizer& optimizer() { return optimizer_; }
  ParameterClient& client(uint32_t index) { return *clients_[index]; }
  void Destroy(uint32_t worker) {
    clients_[worker].reset();
    workers_[worker].reset();
  }
  // Another process in place of a worker that was destroyed.
  Status Renew(uint32_t worker, uint32_t incarnation) { return Connect(worker, incarnation); }
  // What the servers told people.
  std::vector<std::string> log() const;

  // Submits on one worker; the error or null and an error. Release what you get.
  Status Submit(uint32_t worker, const Transfer& transfer, Work** out);
  // Submits and waits.
  Status Run(uint32_t worker, const Transfer& transfer);

 private:
  FaultInjector FaultsOf(uint32_t endpoint) const;
  Status Connect(uint32_t worker, uint32_t incarnation);

  const ClusterSettings settings_;
  std::vector<ServerAddress> addresses_;
  std::vector<KeyPair> worker_keys_;
  TestOptimizer optimizer_;
  bool ok_ = true;
  std::mutex submits_;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;               // guarded by mutex_
  std::vector<std::unique_ptr<Works>> works_;  // by worker
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<ServedParameters>> clients_;  // with ClusterSettings::update
};

// Waits for it and releases it.
Status Finish(Work* work);

// Runs body(worker) on a thread each.
void RunWorkers(uint32_t workers, const std::function<void(uint32_t worker)>& body);

}  // namespace engine::zmq_ps
