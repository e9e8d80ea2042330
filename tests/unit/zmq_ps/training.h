// What a rank does that trains on parameters that live at servers, reduced to its requests.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster.h"

namespace engine::zmq_ps {

struct TestBucket {
  uint64_t key = 0;
  int64_t count = 0;
  int64_t row = 0;
};
using Buckets = std::vector<TestBucket>;
// Of every bucket, one behind the other.
using Weights = std::vector<float>;

Status Register(ParameterClient& client, const Buckets& buckets, Optimizer& optimizer);
// Registers; stores zeros on rank 0, loads on others.
Status Prepare(ParameterClient& client, uint32_t worker, const Buckets& buckets,
               Optimizer& optimizer, Weights* weights);
// Steps first .. last: BeginStep, all pushes, all pulls. Gradients of a worker are its number + 1, of
// weight 1, and the learning rate is 1: so in step the weights of W workers sink by (W + 1) / 2.
Status Train(Cluster& cluster, uint32_t worker, const Buckets& buckets, int first, int last,
             Weights* weights);

}  // namespace engine::zmq_ps
