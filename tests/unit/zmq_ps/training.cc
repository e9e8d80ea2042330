#include "training.h"

namespace engine::zmq_ps {
namespace {

constexpr int64_t kTimeoutMs = 30000;

}  // namespace

Status Register(ParameterClient& client, const Buckets& buckets, Optimizer& optimizer) {
  std::vector<ServedSpan> spans;
  for (const TestBucket& bucket : buckets) spans.push_back({.count = bucket.count});
  std::vector<ServedBucket> served;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const TestBucket& bucket = buckets[i];
    served.push_back(
        {.key = bucket.key, .count = bucket.count, .spans = {&spans[i], 1}, .row = bucket.row});
  }
  return client.Register(served, optimizer, kTimeoutMs);
}

Status Prepare(ParameterClient& client, uint32_t worker, const Buckets& buckets,
               Optimizer& optimizer, Weights* weights) {
  ENGINE_RETURN_IF_ERROR(Register(client, buckets, optimizer));
  weights->clear();
  for (const TestBucket& bucket : buckets) {
    Weights values(static_cast<size_t>(bucket.count));
    ENGINE_RETURN_IF_ERROR(worker == 0 ? client.Store(bucket.key, -1, values.data(), kTimeoutMs)
                                       : client.Load(bucket.key, -1, values.data(), kTimeoutMs));
    weights->insert(weights->end(), values.begin(), values.end());
  }
  return {};
}

Status Train(Cluster& cluster, uint32_t worker, const Buckets& buckets, int first, int last,
             Weights* weights) {
  const Weights gradient(weights->size(), static_cast<float>(worker + 1));
  for (int step = first; step <= last; ++step) {
    ENGINE_RETURN_IF_ERROR(cluster.client(worker).BeginStep(
        {.step = static_cast<uint64_t>(step), .learning_rate = 1, .weight = 1}));
    std::vector<Work*> works;
    Status status;
    float* values = weights->data();
    for (const TestBucket& bucket : buckets) {
      for (const TransferKind kind : {TransferKind::kPush, TransferKind::kPull}) {
        Work* work = nullptr;
        const Status submitted = cluster.Submit(worker,
                                                {.kind = kind,
                                                 .send = gradient.data(),
                                                 .recv = values,
                                                 .count = bucket.count,
                                                 .key = bucket.key},
                                                &work);
        if (submitted.ok()) works.push_back(work);
        if (status.ok()) status = submitted;
      }
      values += bucket.count;
    }
    for (Work* const work : works) {
      const Status ended = Finish(work);
      if (status.ok()) status = ended;
    }
    ENGINE_RETURN_IF_ERROR(status);
  }
  return {};
}

}  // namespace engine::zmq_ps
