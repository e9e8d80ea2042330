#include "tools/simulate/study.h"

#include <map>
#include <memory>
#include <utility>

#include "app/launch/log.h"
#include "tools/simulate/compute_times.h"
#include "tools/simulate/local_profiler.h"
#include "tools/simulate/step_model.h"

namespace engine::simulate {
namespace {

constexpr int kMeasurements = 3;

// What a run does before it is settled, in a trace: caches, the first batch.
constexpr uint64_t kTracedWarmUp = 2;

// Of one rank, as the trainer shares them out.
int64_t SamplesOfRank(const train::RunConfig& config, int32_t world_size) {
  return (config.train.GlobalBatch(world_size) + world_size - 1) / world_size;
}

uint32_t InFlight(const NetworkModel& network, int32_t ranks) {
  return ranks == 1 ? 0 : static_cast<uint32_t>(network.max_in_flight);
}

// Of the traced run; `rank` has its configuration.
Result<ComputeTimes> LearnFrom(const trace::Trace& trace, LocalProfiler& rank, int64_t samples,
                               const NetworkModel& network) {
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<StepModel> model, StepModel::Create(rank, samples));
  ComputeTimes times;
  for (const trace::RankTimeline& timeline : trace.ranks) {
    uint64_t first_step = UINT64_MAX;
    for (const trace::Span& span : timeline.spans) first_step = std::min(first_step, span.step);
    ENGINE_ASSIGN_OR_RETURN(
        const StepPlan plan,
        model->PlanFor(timeline.rank, timeline.world_size, InFlight(network, timeline.world_size),
                       network.servers));
    ENGINE_RETURN_IF_ERROR(times.Learn(timeline, plan.graph, first_step + kTracedWarmUp));
  }
  return times;
}

// Compute times by samples of a rank.
class Compute {
 public:
  // `rank` has the configuration that is measured, or that was traced.
  Compute(LocalProfiler& rank, const std::optional<TracedRun>& traced, const StudyOptions& options)
      : rank_(rank), traced_(traced), options_(options) {}

  // A trace knows the batch of its run only.
  int64_t SamplesAt(int32_t ranks) const {
    return SamplesOfRank(rank_.config(), traced_ ? traced_->trace.ranks[0].world_size : ranks);
  }

  struct Known {
    ComputeTimes times;
    std::optional<ComputeSpread> spread;
  };
  const Known& Of(int64_t samples) const { return known_.at(samples); }

  // What is measured takes turns: load that comes and goes meets all batches.
  Status Learn() {
    const int64_t alone = SamplesAt(1);
    if (traced_) {
      ENGINE_ASSIGN_OR_RETURN(known_[alone].times,
                              LearnFrom(traced_->trace, rank_, alone, options_.network));
      return {};
    }
    std::map<int64_t, std::vector<std::pair<double, ComputeTimes>>> measured;  // by samples
    measured[alone];
    for (const int32_t ranks : options_.ranks) measured[SamplesAt(ranks)];
    for (int i = 0; i < kMeasurements; ++i) {
      for (auto& [samples, all] : measured) {
        double seconds = 0;
        ENGINE_ASSIGN_OR_RETURN(ComputeTimes times,
                                rank_.MeasureCompute(samples, options_.measured_steps, &seconds));
        all.emplace_back(seconds, std::move(times));
      }
    }
    for (auto& [samples, all] : measured) {
      std::sort(all.begin(), all.end(),
                [](const auto& one, const auto& other) { return one.first < other.first; });
      auto& [median, times] = all[kMeasurements / 2];
      known_[samples] = {std::move(times),
                         ComputeSpread{all.front().first, median, all.back().first}};
    }
    return {};
  }

 private:
  LocalProfiler& rank_;
  const std::optional<TracedRun>& traced_;
  const StudyOptions& options_;
  std::map<int64_t, Known> known_;
};

void AddParts(const exec::TaskGraph& graph, const std::vector<int64_t>& compute_ns,
              const NetworkModel& network, Prediction* prediction) {
  const bool one_way = network.servers > 0;  // pushes and pulls
  double out = 0, in = 0;                    // seconds of each way of the busiest link
  for (const exec::Task& task : graph.tasks) {
    const TaskInfo& info = task.info;
    if (info.lane == Lane::kCompute) {
      const bool forward = info.kind == TaskKind::kForward || IsTail(task);
      const double seconds = 1e-9 * static_cast<double>(compute_ns[info.id]);
      (forward ? prediction->forward : prediction->backward) += seconds;
      continue;
    }
    const double seconds =
        1e-9 * LinkNs(network, info.transfer, info.size_bytes, prediction->ranks);
    prediction->serial += seconds;
    if (!one_way || info.transfer != TransferKind::kPull) out += seconds;
    if (!one_way || info.transfer != TransferKind::kPush) in += seconds;
  }
  prediction->communication = std::max(out, in);
}

class StudyOfScheduler {
 public:
  StudyOfScheduler(LocalProfiler& rank, const Compute& compute, const StudyOptions& options,
                   bool hier)
      : rank_(rank), compute_(compute), options_(options), hier_(hier) {
    study_.scheduler = rank.config().plugins.scheduler.entry.name + (hier ? "+hier" : "");
  }

  Result<SchedulerStudy> Run() {
    ENGINE_ASSIGN_OR_RETURN(study_.alone, Predict(1));
    for (int32_t ranks : options_.ranks) {
      ENGINE_ASSIGN_OR_RETURN(Prediction prediction, Predict(ranks));
      const auto speed = [](const Prediction& of) {
        return static_cast<double>(of.samples) / of.step;
      };
      prediction.scaling_efficiency = speed(prediction) / speed(study_.alone);
      study_.predictions.push_back(prediction);
    }
    return std::move(study_);
  }

 private:
  Result<Prediction> Predict(int32_t ranks) {
    Prediction prediction{.ranks = ranks, .samples = compute_.SamplesAt(ranks)};
    const Compute::Known& compute = compute_.Of(prediction.samples);
    const ComputeTimes* times = &compute.times;
    prediction.compute = compute.spread;
    ENGINE_ASSIGN_OR_RETURN(const StepModel* model, ModelOf(prediction.samples));
    NetworkModel network = options_.network;
    network.hier = hier_;
    network.collective = model->collective(network.servers);
    if (!network.collective && network.ranks_per_host > 1) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "parameter servers are simulated with one rank on each host: leave out "
                           "--ranks-per-host");
    }
    LinkModel* const link = Query<LinkModel>(*rank_.plugins().communicator);
    if (link != nullptr) network.link = link->cost();
    ENGINE_ASSIGN_OR_RETURN(const StepPlan plan,
                            model->PlanFor(0, ranks, InFlight(network, ranks), network.servers));
    ENGINE_ASSIGN_OR_RETURN(const std::vector<int64_t> compute_ns, times->For(plan.graph));
    ENGINE_ASSIGN_OR_RETURN(const SimulationResult result,
                            Simulate(plan.graph, compute_ns, network, *plan.scheduler,
                                     {.steps = options_.steps,
                                      .ranks = ranks,
                                      .task_overhead_ns = times->task_overhead_ns(),
                                      .step_overhead_ns = times->step_overhead_ns(),
                                      .scheduler_name = study_.scheduler}));
    prediction.step = 1e-9 * result.MeanStepNs();
    prediction.exposed = 1e-9 * result.MeanWaitedNs();
    AddParts(plan.graph, compute_ns, network, &prediction);
    for (const std::string& warning : plan.rank->warnings) {
      std::vector<std::string>& all = study_.warnings;
      if (std::find(all.begin(), all.end(), warning) == all.end()) all.push_back(warning);
    }
    return prediction;
  }

  Result<const StepModel*> ModelOf(int64_t samples) {
    std::unique_ptr<StepModel>& model = models_[samples];
    if (model == nullptr) {
      ENGINE_ASSIGN_OR_RETURN(model, StepModel::Create(rank_, samples));
    }
    return model.get();
  }

  LocalProfiler& rank_;
  const Compute& compute_;
  const StudyOptions& options_;
  const bool hier_;
  std::map<int64_t, std::unique_ptr<StepModel>> models_;  // by samples
  SchedulerStudy study_;
};

}  // namespace

Result<std::vector<SchedulerStudy>> RunStudy(const std::vector<config::Config>& configs,
                                             const std::optional<TracedRun>& traced,
                                             const StudyOptions& options) {
  ENGINE_CHECK(!configs.empty(), "a study without a configuration");
  const base::LogSink log = launch::MemberLog({});
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalProfiler> source,
                          LocalProfiler::Create(traced ? traced->config : configs[0], log));
  Compute compute(*source, traced, options);
  ENGINE_RETURN_IF_ERROR(compute.Learn());
  std::vector<SchedulerStudy> studies;
  for (const config::Config& config : configs) {
    ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalProfiler> rank,
                            LocalProfiler::Create(config, log));
    for (const bool hier : {false, true}) {
      if (hier && options.network.ranks_per_host == 1) continue;
      ENGINE_ASSIGN_OR_RETURN(SchedulerStudy study,
                              StudyOfScheduler(*rank, compute, options, hier).Run());
      studies.push_back(std::move(study));
    }
  }
  return studies;
}

std::vector<std::string> Ranking(const std::vector<SchedulerStudy>& studies, int32_t ranks) {
  std::vector<std::pair<double, std::string>> order;
  for (const SchedulerStudy& study : studies) {
    for (const Prediction& prediction : study.predictions) {
      if (prediction.ranks == ranks) order.emplace_back(prediction.step, study.scheduler);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (auto& [step, name] : order) names.push_back(std::move(name));
  return names;
}

}  // namespace engine::simulate
