#include "cluster.h"

#include <thread>

namespace engine::zmq_ps {

Cluster::Cluster(const ClusterSettings& settings)
    : settings_(settings),
      worker_keys_(settings.workers),
      workers_(settings.workers),
      clients_(settings.workers) {
  std::vector<std::string> public_keys;
  for (KeyPair& keys : worker_keys_) {
    keys = *KeyPair::Make();
    public_keys.push_back(keys.public_key);
  }
  for (uint32_t i = 0; i < settings.servers; ++i) {
    const KeyPair keys = settings.encrypt ? *KeyPair::Make() : KeyPair();
    auto server = Server::Start({.endpoint = "tcp://127.0.0.1:*",
                                 .secret_key = keys.secret_key,
                                 .worker_keys = public_keys,
                                 .update = settings.update,
                                 .reduce_threads = settings.reduce_threads,
                                 .connection = {.flow = {.slice_bytes = settings.slice_bytes},
                                                .heartbeat = settings.heartbeat,
                                                .lost_after_ms = settings.lost_after_ms,
                                                .faults = FaultsOf(i)},
                                 .log = [this](std::string_view line) {
                                   const std::lock_guard lock(mutex_);
                                   log_.emplace_back(line);
                                 }});
    EXPECT_TRUE(server.ok()) << server.status().message();
    ok_ = ok_ && server.ok();
    if (!server.ok()) return;
    addresses_.push_back(
        {(*server)->endpoint(), keys.public_key, ServerId(static_cast<int32_t>(i))});
    servers_.push_back(std::move(*server));
  }
  for (uint32_t i = 0; i < settings.workers; ++i) {
    works_.push_back(std::make_unique<Works>());
    const Status connected = Connect(i, 0);
    EXPECT_TRUE(connected.ok()) << connected.message();
    ok_ = ok_ && connected.ok();
  }
}

Status Cluster::Connect(uint32_t index, uint32_t incarnation) {
  std::vector<ServerAddress> servers = addresses_;
  for (ServerAddress& server : servers) {
    if (settings_.route) server.endpoint = settings_.route(index, server.endpoint);
  }
  auto worker = Worker::Connect({.worker = index,
                                 .world_size = settings_.workers,
                                 .incarnation = incarnation,
                                 .keys = worker_keys_[index],
                                 .servers = std::move(servers),
                                 .connection = {.flow = {.slice_bytes = settings_.slice_bytes},
                                                .heartbeat = settings_.heartbeat,
                                                .faults = FaultsOf(settings_.servers + index)},
                                 .min_slice_bytes = settings_.min_slice_bytes,
                                 .gate = &works_[index]->gate()},
                                kit::DeadlineIn(20000));
  if (!worker.ok()) return worker.status();
  workers_[index] = std::move(*worker);
  if (!settings_.update) return {};
  clients_[index] =
      std::make_unique<ServedParameters>(*settings_.update, settings_.slice_bytes, *workers_[index],
                                         *works_[index], [this](Optimizer& optimizer) {
                                           for (const auto& server : servers_)
                                             server->Serve(optimizer);
                                         });
  return {};
}

FaultInjector Cluster::FaultsOf(uint32_t endpoint) const {
  return settings_.faults ? settings_.faults(endpoint) : FaultInjector();
}

Cluster::~Cluster() {
  clients_.clear();
  workers_.clear();
  for (const auto& server : servers_) server->Stop(1000);
}

std::vector<std::string> Cluster::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

Status Cluster::Submit(uint32_t worker, const Transfer& transfer, Work** out) {
  const std::lock_guard lock(submits_);  // as of an executor: never two at once
  const bool served = transfer.kind == TransferKind::kPush || transfer.kind == TransferKind::kPull;
  ENGINE_ASSIGN_OR_RETURN(TransferWork* const work, works_[worker]->Take(transfer));
  Status status = served ? clients_[worker]->Prepare(work) : Status();
  if (status.ok()) status = workers_[worker]->Submit(work);
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
  return Finish(work);
}

Status Finish(Work* work) {
  const Status status = work->WaitHost(60000);
  work->Release();
  return status;
}

void RunWorkers(uint32_t workers, const std::function<void(uint32_t worker)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < workers; ++worker) threads.emplace_back(body, worker);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace engine::zmq_ps
