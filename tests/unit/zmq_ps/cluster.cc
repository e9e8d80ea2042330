#include "cluster.h"

#include <thread>

namespace engine::zmq_ps {

Cluster::Cluster(const ClusterSettings& settings) : workers_(settings.workers) {
  std::vector<KeyPair> worker_keys(settings.workers);
  std::vector<std::string> public_keys;
  for (KeyPair& keys : worker_keys) {
    if (settings.encrypt) keys = *KeyPair::Make();
    if (settings.encrypt) public_keys.push_back(keys.public_key);
  }
  std::vector<ServerAddress> addresses;
  for (uint32_t i = 0; i < settings.servers; ++i) {
    const KeyPair keys = settings.encrypt ? *KeyPair::Make() : KeyPair();
    auto server = Server::Start({.endpoint = "tcp://127.0.0.1:*",
                                 .keys = keys,
                                 .worker_keys = public_keys,
                                 .workers = settings.workers,
                                 .reduce_threads = settings.reduce_threads,
                                 .slice_bytes = settings.slice_bytes,
                                 .resend_ms = settings.resend_ms,
                                 .log =
                                     [this](std::string_view line) {
                                       const std::lock_guard lock(mutex_);
                                       log_.emplace_back(line);
                                     },
                                 .wrap = settings.faults ? settings.faults(i) : LinkWrapper()});
    EXPECT_TRUE(server.ok()) << server.status().message();
    ok_ = ok_ && server.ok();
    if (!server.ok()) return;
    const std::string& endpoint = (*server)->endpoint();
    addresses.push_back({settings.route ? settings.route(endpoint) : endpoint, keys.public_key,
                         static_cast<int32_t>(i)});
    servers_.push_back(std::move(*server));
  }
  for (uint32_t i = 0; i < settings.workers; ++i) {
    pools_.push_back(std::make_shared<WorkPool>());
    auto worker = Worker::Connect(
        {.worker = i,
         .world_size = settings.workers,
         .servers = addresses,
         .keys = worker_keys[i],
         .slice_bytes = settings.slice_bytes,
         .min_slice_bytes = settings.min_slice_bytes,
         .resend_ms = settings.resend_ms,
         .wrap = settings.faults ? settings.faults(settings.servers + i) : LinkWrapper()},
        DeadlineIn(20000));
    EXPECT_TRUE(worker.ok()) << worker.status().message();
    ok_ = ok_ && worker.ok();
    if (worker.ok()) workers_[i] = std::move(*worker);
  }
}

Cluster::~Cluster() {
  workers_.clear();
  for (const auto& server : servers_) server->Stop(1000);
}

std::vector<std::string> Cluster::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

Status Cluster::Submit(uint32_t worker, const Transfer& transfer, Work** out) {
  PooledWork* const work = pools_[worker]->Take(transfer);
  const Status status = workers_[worker]->Submit(work);
  if (status.ok()) {
    *out = work;
    return {};
  }
  work->Complete(status);
  work->Release();
  return status;
}

Status Cluster::Run(uint32_t worker, const Transfer& transfer) {
  Work* work = nullptr;
  ENGINE_RETURN_IF_ERROR(Submit(worker, transfer, &work));
  const Status status = work->WaitHost(transfer.timeout_ms + 5000);
  work->Release();
  return status;
}

void RunWorkers(uint32_t workers, const std::function<void(uint32_t worker)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < workers; ++worker) threads.emplace_back(body, worker);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace engine::zmq_ps
