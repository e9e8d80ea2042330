#include "bench/training/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/training/losses.h"
#include "bench/training/order.h"

namespace engine::bench {
namespace {

constexpr int kTries = 3;  // of a run whose packets were dropped

class Comparison {
 public:
  Comparison(const TrainRequest& request, const Program& program, const ProgressSink& progress)
      : request_(request), program_(program), progress_(progress) {}

  Status Run(TrainResult* result);

 private:
  Status MakeLink(TrainResult* result);
  Status Rehearse(EngineRunner& runner) const;
  Status Measure(EngineRunner& runner, const std::vector<Turn>& order, TrainResult* result) const;
  Result<RunResult> MeasureOne(EngineRunner& runner, const Turn& turn, TrainResult* result) const;
  void Tell(const TrainResult& result, size_t all) const;

  const TrainRequest& request_;
  const Program& program_;
  const ProgressSink& progress_;
  std::unique_ptr<LinkedHosts> hosts_;
};

Status Comparison::MakeLink(TrainResult* result) {
  if (request_.link.rate.empty()) return {};
  LinkOptions options = request_.link;
  options.hosts = request_.ranks + request_.servers;
  ENGINE_ASSIGN_OR_RETURN(hosts_, LinkedHosts::Create(options));
  const LinkFacts& facts = hosts_->facts();
  result->link =
      LinkConditions{request_.link.rate, facts.goodput_bits_per_second, facts.congestion};
  return {};
}

// Also finds out whether each side runs at all, before minutes are spent on the others.
Status Comparison::Rehearse(EngineRunner& runner) const {
  for (const SideId side : {SideId::kA, SideId::kB, SideId::kNull}) {
    if (side == SideId::kNull && !request_.null_side) continue;
    if (side == SideId::kB && request_.same) continue;
    const auto run = runner.Run({side, 0}, /*steps=*/1);
    if (!run.ok()) return run.status();
  }
  return {};
}

Result<RunResult> Comparison::MeasureOne(EngineRunner& runner, const Turn& turn,
                                         TrainResult* result) const {
  for (int i = 0; i < kTries; ++i) {
    ENGINE_ASSIGN_OR_RETURN(RunResult run, runner.Run(turn, request_.steps));
    if (run.dropped_packets == 0) return run;
    progress_("a run of " + std::string(Name(turn.side)) +
              " is discarded: " + std::to_string(run.dropped_packets) + " of " +
              std::to_string(run.sent_packets) + " packets were dropped");
    result->discarded.push_back(std::move(run));
  }
  return Status::Error(StatusCode::kBadData,
                       "%d runs of %s in a row had packets dropped on the emulated link: what "
                       "they measure is its buffer; choose another rate or congestion control",
                       kTries, Name(turn.side));
}

void Comparison::Tell(const TrainResult& result, size_t all) const {
  const RunResult& run = result.runs.back();
  const auto target = run.target_seconds;
  progress_(fmt::format("run {} of {}  block {}  {:<4}  {:10.3f} ms per step{}", result.runs.size(),
                        all, run.block + 1, Name(run.side), 1e3 * Median(run.step_seconds),
                        target ? fmt::format(", {:.2f} s to the target", *target) : ""));
}

Status Comparison::Measure(EngineRunner& runner, const std::vector<Turn>& order,
                           TrainResult* result) const {
  const auto begin = std::chrono::steady_clock::now();
  for (const Turn& turn : order) {
    ENGINE_ASSIGN_OR_RETURN(RunResult run, MeasureOne(runner, turn, result));
    const std::chrono::duration<double> now = std::chrono::steady_clock::now() - begin;
    run.begin_seconds = std::max(0.0, now.count() - run.wall_seconds);
    if (!program_.measures()) continue;
    result->runs.push_back(std::move(run));
    Tell(*result, order.size());
  }
  return {};
}

Status Comparison::Run(TrainResult* result) {
  const launch::StopSignals signals;
  ENGINE_RETURN_IF_ERROR(MakeLink(result));
  EngineRunner runner(request_, program_, signals, hosts_.get());
  ENGINE_RETURN_IF_ERROR(Rehearse(runner));
  return Measure(runner, MakeOrder(request_.blocks, request_.null_side.has_value()), result);
}

double MedianOfRuns(const std::vector<RunResult>& runs, SideId side, double RunResult::*field) {
  std::vector<double> values;
  for (const RunResult& run : runs) {
    if (run.side == side) values.push_back(run.*field);
  }
  return Median(std::move(values));
}

struct ComputeTimes {
  double forward = 0, backward = 0;
};

// F and B: stated by the model, or what the tasks of the null side took. Updates and the rest of a
// step are computed too: they count as backward work, because they end it.
std::optional<ComputeTimes> GetComputeTimes(const TrainResult& result) {
  const auto& stated = result.request.stated;
  if (stated) return ComputeTimes{stated->forward_seconds, stated->backward_seconds};
  if (!result.request.null_side) return std::nullopt;
  const double forward = MedianOfRuns(result.runs, SideId::kNull, &RunResult::forward_seconds);
  const double step = result.steps[static_cast<int>(SideId::kNull)].median;
  return ComputeTimes{forward, std::max(0.0, step - forward)};
}

// Of a rank's gradients, the share that the busiest link carries each way. An all-reduce: 2
// (n-1)/n; so do servers inside of the ranks. With servers of their own, which share the bytes of
// all ranks: 1 on the link of a rank, n / servers on that of a server.
double LinkShare(const TrainRequest& request) {
  const double ranks = request.ranks;
  if (request.servers == 0) return 2 * (ranks - 1) / ranks;
  return std::max(1.0, ranks / request.servers);
}

Conditions GetConditions(const TrainResult& result) {
  Conditions conditions;
  const auto compute = GetComputeTimes(result);
  if (compute) conditions.compute_seconds = compute->forward + compute->backward;
  int64_t bytes = 0;
  for (const RunResult& run : result.runs) bytes = std::max(bytes, run.bytes_per_step);
  if (result.request.stated) bytes = result.request.stated->gradient_bytes;
  if (!result.link || bytes == 0 || result.link->goodput_bits_per_second <= 0) return conditions;
  const double link_bytes = LinkShare(result.request) * static_cast<double>(bytes);
  const double c = link_bytes * 8 / result.link->goodput_bits_per_second;
  conditions.communication_seconds = c;
  if (!compute || *conditions.compute_seconds <= 0) return conditions;
  conditions.ratio = c / *conditions.compute_seconds;
  // With servers everything is first pushed, then pulled.
  const int ways = result.request.servers > 0 ? 2 : 1;
  conditions.no_overlap = *conditions.compute_seconds + ways * c;
  conditions.backward_overlap = compute->forward + std::max(compute->backward, c);
  conditions.full_overlap = std::max(*conditions.compute_seconds, c);
  return conditions;
}

std::string ControlInWords(const Ratio& ratio) {
  if (!HasInterval(ratio)) return "control says nothing: " + ConclusionText(ratio);
  if (Judge(ratio) == Conclusion::kNotSeparable) {
    // The half-width of the interval: what a real difference has to exceed.
    return fmt::format(
        "control passed: A against itself is {}; differences below {:.1f} % would not have been "
        "seen",
        ConclusionText(ratio), 100 * (ratio.high / ratio.estimate - 1));
  }
  return "control failed: A against itself, yet " + ConclusionText(ratio) +
         "; the machine was not steady, so take no conclusion from it as it is (more --blocks, "
         "less load)";
}

// The interval of a side is that of its ratio to one second.
void ConcludeTarget(TrainResult* result) {
  const TrainRequest& request = result->request;
  std::vector<Pair> sides[kSides];
  for (const RunResult& run : result->runs) {
    result->refused |= !run.target_seconds;
    if (run.target_seconds) sides[static_cast<int>(run.side)].push_back({run.Times(), {1}});
  }
  for (int side = 0; side < kSides; ++side) {
    result->target_seconds[side] = EstimateRatio(sides[side], {.seed = request.seed});
  }
  if (result->refused) {
    result->ratio = {};
    result->sentence = fmt::format(
        "no conclusion: in {} steps A reached a loss of {:g} in {} of {} runs and B in {}: "
        "take more --steps or a higher --target-loss",
        request.steps, *request.target_loss, sides[0].size(), 2 * request.blocks, sides[1].size());
  } else {
    result->sentence += fmt::format(", to a loss of {:g}", *request.target_loss);
  }
}

}  // namespace

std::string Describe(const Side& side) {
  std::string text;
  for (const auto* words : {&side.plugins, &side.overrides}) {
    for (const std::string& word : *words) text += (text.empty() ? "" : ", ") + word;
  }
  return text.empty() ? "as configured" : text;
}

std::vector<double> StepsOf(const TrainResult& result, SideId side) {
  std::vector<double> steps;
  for (const RunResult& run : result.runs) {
    if (run.side == side) {
      steps.insert(steps.end(), run.step_seconds.begin(), run.step_seconds.end());
    }
  }
  return steps;
}

void Conclude(TrainResult* result) {
  for (int side = 0; side < kSides; ++side) {
    result->steps[side] = Summarize(StepsOf(*result, static_cast<SideId>(side)));
  }
  result->conditions = GetConditions(*result);
  result->ratio = EstimateRatio(MakePairs(result->runs), {.seed = result->request.seed});
  result->sentence =
      result->request.same ? ControlInWords(result->ratio) : ConclusionText(result->ratio);
  if (result->request.target_loss) return ConcludeTarget(result);
  const double tolerance = result->request.loss_tolerance;
  result->difference = FindLossDifference(result->runs, tolerance);
  result->refused = result->difference.has_value();
  if (result->refused) {
    result->sentence = DifferenceInWords(*result->difference, result->runs, tolerance);
  }
}

Result<TrainResult> CompareTraining(const TrainRequest& request, const Program& program,
                                    const Machine& machine, const ProgressSink& progress) {
  TrainResult result;
  result.request = request;
  result.machine = machine;
  ENGINE_RETURN_IF_ERROR(Comparison(request, program, progress).Run(&result));
  if (program.measures()) Conclude(&result);
  return result;
}

}  // namespace engine::bench
