#include "bench/cluster/steps.h"

#include <utility>

#include "app/run/training.h"
#include "bench/training/losses.h"

namespace engine::bench {
namespace {

constexpr int64_t kMeetMs = 30000;  // ranks end their last step at about the same time

class StepTimes final : public run::RunObserver {
 public:
  explicit StepTimes(int64_t warmup) : warmup_(warmup) {}
  Status OnStep(const train::StepReport& report) override {
    losses.push_back(report.loss);
    if (report.step > warmup_) seconds.push_back(report.seconds);
    return {};
  }

  std::vector<double> losses, seconds;

 private:
  const int64_t warmup_;
};

// In this process: each run has a session, so nothing of one reaches the next. The figures meet
// when the trainer is gone, so that no rank still waits for a transfer of one that is ahead.
Status TrainOnce(const config::Config& config, int64_t warmup, base::RankContext& rank,
                 SideSteps* side) {
  StepTimes times(warmup);
  {
    ENGINE_ASSIGN_OR_RETURN(const auto trainer, run::MakeTrainer(config, rank, times, nullptr, ""));
    ENGINE_RETURN_IF_ERROR(run::RunTraining(config, rank, times, *trainer));
  }
  Rendezvous rendezvous(rank, kMeetMs);
  ENGINE_ASSIGN_OR_RETURN(std::vector<double> slowest, rendezvous.Largest(times.seconds));
  side->seconds.push_back(std::move(slowest));
  side->losses = std::move(times.losses);
  return {};
}

Status CompareLosses(const SideSteps& first, const SideSteps& side, double tolerance) {
  const auto differ = FindLossDifference(
      {{.losses = first.losses}, {.side = SideId::kB, .losses = side.losses}}, tolerance);
  if (!differ) return {};
  return Status::Error(StatusCode::kBadData, "the loss of step %lld is %.7g, with %s it is %.7g",
                       static_cast<long long>(differ->step), differ->other_loss, first.name.c_str(),
                       differ->loss);
}

}  // namespace

Result<std::vector<SideSteps>> RaceTraining(const std::vector<TrainingSide>& sides, int rounds,
                                            int64_t warmup, double tolerance, Sessions& sessions) {
  std::vector<SideSteps> steps;
  for (const TrainingSide& side : sides) steps.push_back({.name = side.name});
  std::vector<Status> failures(sides.size());
  ENGINE_RETURN_IF_ERROR(sessions.TakeTurns(
      rounds,
      [&](size_t side, base::RankContext& rank) {
        return TrainOnce(sides[side].config, warmup, rank, &steps[side]);
      },
      &failures));
  // Losses are means over all ranks, so all ranks find the same.
  for (size_t i = 0; i < sides.size(); ++i) {
    steps[i].failure = failures[i].ok() && failures[0].ok()
                           ? CompareLosses(steps[0], steps[i], tolerance)
                           : failures[i];
    if (!steps[i].failure.ok()) steps[i].seconds.clear();
  }
  return steps;
}

}  // namespace engine::bench
