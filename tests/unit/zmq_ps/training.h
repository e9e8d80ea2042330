// What a rank does that trains on parameters that live at servers, reduced to its requests.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster.h"

namespace engine::zmq_ps {

struct TestUnit {
  uint64_t key = 0;
  int64_t count = 0;
  int64_t row = 0;
};

struct TrainingSettings {
  uint32_t workers = 2;
  int steps = 4;
  std::vector<TestUnit> units = {{11, 1}, {12, 3000}, {13, 70001}, {14, 512}};
};

// Of every unit, one behind the other.
using Weights = std::vector<float>;

// The gradient of one unit of a worker in a step: any numbers, always the same.
std::vector<float> GradientOf(uint32_t worker, int step, const TestUnit& unit);
Weights InitialWeights(const TrainingSettings& settings);
ServedStep StepOf(const TrainingSettings& settings, uint32_t worker, int step);

// The same on one array in the memory of this process: sums in the order of the ranks, and the same
// optimizer.
Weights Expected(const TrainingSettings& settings);

Status Register(ParameterClient& client, const TrainingSettings& settings, Optimizer& optimizer);
// Registers, stores on rank 0, loads on others.
Status Prepare(ParameterClient& client, uint32_t worker, const TrainingSettings& settings,
               Optimizer& optimizer, Weights* weights);
// Steps first .. last: BeginStep, all pushes, all pulls.
Status Train(Cluster& cluster, uint32_t worker, const TrainingSettings& settings, int first,
             int last, Weights* weights);

// Prepare and Train on all workers of a cluster at once; the weights of each.
std::vector<Weights> TrainAll(Cluster& cluster, const TrainingSettings& settings);

}  // namespace engine::zmq_ps
