#include "training.h"

#include <algorithm>
#include <random>

namespace engine::zmq_ps {
namespace {

constexpr int64_t kTimeoutMs = 30000;

float LearningRate(int step) {
  return 0.1f / static_cast<float>(step);
}

float WeightOf(uint32_t worker, int step) {
  return static_cast<float>(3 + worker + static_cast<uint32_t>(step) % 2);
}

// Two parameters of which the second one decays half as much.
std::vector<ServedSpan> SpansOf(const TestUnit& unit) {
  if (unit.count < 2) return {{.count = unit.count}};
  const int64_t first = unit.count / 3 + 1;
  return {{.count = first}, {.count = unit.count - first, .weight_decay_scale = 0.5f}};
}

}  // namespace

std::vector<float> GradientOf(uint32_t worker, int step, const TestUnit& unit) {
  std::mt19937 random(worker * 10000 + static_cast<uint32_t>(step) * 100 +
                      static_cast<uint32_t>(unit.key));
  std::uniform_real_distribution<float> any(-10, 10);
  std::vector<float> gradient(static_cast<size_t>(unit.count));
  for (float& x : gradient) x = any(random);
  return gradient;
}

Weights InitialWeights(const TrainingSettings& settings) {
  Weights weights;
  for (const TestUnit& unit : settings.units) {
    const std::vector<float> values = GradientOf(99, 0, unit);
    weights.insert(weights.end(), values.begin(), values.end());
  }
  return weights;
}

ServedStep StepOf(const TrainingSettings&, uint32_t worker, int step) {
  return {.step = static_cast<uint64_t>(step),
          .learning_rate = LearningRate(step),
          .weight = WeightOf(worker, step)};
}

Weights Expected(const TrainingSettings& settings) {
  Weights weights = InitialWeights(settings);
  Weights momentum(weights.size());
  TestOptimizer optimizer;
  for (int step = 1; step <= settings.steps; ++step) {
    float samples = 0;
    for (uint32_t worker = 0; worker < settings.workers; ++worker) {
      samples += WeightOf(worker, step);
    }
    size_t first = 0;
    for (const TestUnit& unit : settings.units) {
      std::vector<float> sum = GradientOf(0, step, unit);
      for (uint32_t worker = 1; worker < settings.workers; ++worker) {
        const std::vector<float> gradient = GradientOf(worker, step, unit);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
      }
      size_t offset = 0;
      for (const ServedSpan& span : SpansOf(unit)) {
        EXPECT_TRUE(optimizer
                        .Update({.value = &weights[first + offset],
                                 .gradient = &sum[offset],
                                 .states = {&momentum[first + offset]},
                                 .count = span.count,
                                 .gradient_scale = 1.0f / std::max(samples, 1.0f),
                                 .learning_rate = LearningRate(step),
                                 .weight_decay_scale = span.weight_decay_scale,
                                 .step = static_cast<uint64_t>(step)})
                        .ok());
        offset += static_cast<size_t>(span.count);
      }
      first += sum.size();
    }
  }
  return weights;
}

Status Register(ParameterClient& client, const TrainingSettings& settings, Optimizer& optimizer) {
  std::vector<std::vector<ServedSpan>> spans;
  std::vector<ServedUnit> units;
  for (const TestUnit& unit : settings.units) spans.push_back(SpansOf(unit));
  for (size_t i = 0; i < spans.size(); ++i) {
    const TestUnit& unit = settings.units[i];
    units.push_back({.key = unit.key, .count = unit.count, .spans = spans[i], .row = unit.row});
  }
  return client.Register(units, optimizer, kTimeoutMs);
}

Status Prepare(ParameterClient& client, uint32_t worker, const TrainingSettings& settings,
               Optimizer& optimizer, Weights* weights) {
  ENGINE_RETURN_IF_ERROR(Register(client, settings, optimizer));
  *weights = InitialWeights(settings);
  size_t first = 0;
  for (const TestUnit& unit : settings.units) {
    float* const values = weights->data() + first;
    first += static_cast<size_t>(unit.count);
    if (worker == 0) {
      ENGINE_RETURN_IF_ERROR(client.Store(unit.key, -1, values, kTimeoutMs));
    } else {
      std::fill_n(values, unit.count, 0.0f);
      ENGINE_RETURN_IF_ERROR(client.Load(unit.key, -1, values, kTimeoutMs));
    }
  }
  return {};
}

Status Train(Cluster& cluster, uint32_t worker, const TrainingSettings& settings, int first_step,
             int last_step, Weights* weights) {
  for (int step = first_step; step <= last_step; ++step) {
    ENGINE_RETURN_IF_ERROR(cluster.client(worker).BeginStep(StepOf(settings, worker, step)));
    std::vector<std::vector<float>> gradients;
    std::vector<Work*> works;
    for (const TestUnit& unit : settings.units) gradients.push_back(GradientOf(worker, step, unit));
    Status status;
    size_t first = 0;
    for (size_t i = 0; i < gradients.size() && status.ok(); ++i) {
      const TestUnit& unit = settings.units[i];
      Transfer transfer{.kind = TransferKind::kPush,
                        .send = gradients[i].data(),
                        .count = unit.count,
                        .key = unit.key,
                        .priority = static_cast<int32_t>(i)};
      Work* work = nullptr;
      status = cluster.Submit(worker, transfer, &work);
      if (status.ok()) works.push_back(work);
      if (!status.ok()) break;
      transfer.kind = TransferKind::kPull;
      transfer.send = nullptr;
      transfer.recv = weights->data() + first;
      status = cluster.Submit(worker, transfer, &work);
      if (status.ok()) works.push_back(work);
      first += static_cast<size_t>(unit.count);
    }
    for (Work* const work : works) {
      const Status ended = work->WaitHost(60000);
      if (status.ok()) status = ended;
      work->Release();
    }
    ENGINE_RETURN_IF_ERROR(status);
  }
  return {};
}

std::vector<Weights> TrainAll(Cluster& cluster, const TrainingSettings& settings) {
  std::vector<Weights> weights(settings.workers);
  RunWorkers(settings.workers, [&](uint32_t worker) {
    Status status =
        Prepare(cluster.client(worker), worker, settings, cluster.optimizer(), &weights[worker]);
    if (status.ok()) status = Train(cluster, worker, settings, 1, settings.steps, &weights[worker]);
    EXPECT_TRUE(status.ok()) << "worker " << worker << ": " << status.message();
  });
  return weights;
}

}  // namespace engine::zmq_ps
