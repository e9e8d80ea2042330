// Servers and workers in one process, on loopback, without a Host.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
  int64_t resend_ms = 500;
  // The address at which workers find the server at `endpoint`. May be empty.
  std::function<std::string(const std::string& endpoint)> route;
  // Makes the seam of one endpoint; numbers of their own for each. May be empty.
  std::function<LinkWrapper(uint32_t endpoint)> faults;
};

class Cluster {
 public:
  explicit Cluster(const ClusterSettings& settings);
  ~Cluster();

  bool ok() const { return ok_; }
  Server& server(uint32_t index) { return *servers_[index]; }
  Worker& worker(uint32_t index) { return *workers_[index]; }
  void Destroy(uint32_t worker) { workers_[worker].reset(); }
  // What the servers told people.
  std::vector<std::string> log() const;

  // Submits on one worker; the error or null and an error. Release what you get.
  Status Submit(uint32_t worker, const Transfer& transfer, Work** out);
  // Submits and waits.
  Status Run(uint32_t worker, const Transfer& transfer);

 private:
  bool ok_ = true;
  mutable std::mutex mutex_;
  std::vector<std::string> log_;                  // guarded by mutex_
  std::vector<std::shared_ptr<WorkPool>> pools_;  // by worker
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Runs body(worker) on a thread each.
void RunWorkers(uint32_t workers, const std::function<void(uint32_t worker)>& body);

}  // namespace engine::zmq_ps
