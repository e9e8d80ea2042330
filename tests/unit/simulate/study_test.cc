// Whole predictions with the plugins of this build: a network of two layers of a profile, whose
// compute is a sleep, so that its times are known.
#include "tools/simulate/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/launch/log.h"
#include "tests/support/expect_status.h"
#include "tests/unit/simulate/toy_step.h"
#include "tools/simulate/local_profiler.h"
#include "tools/simulate/step_model.h"

namespace engine::simulate {
namespace {

// F = 2 ms, B = 4 ms; the gradients of `back` (1 MB) are ready first, those of `front` (0.1 MB)
// last.
constexpr char kConfig[] = R"(
    model { net {
      layer { name: "front" profile_layer { id: 0 forward_us: 1000 backward_us: 2000 parameters: 25000 } }
      layer { name: "back" profile_layer { id: 1 forward_us: 1000 backward_us: 2000 parameters: 250000 } }
    } }
    data { synthetic { samples: 64 eval_samples: 8 shape: 2 classes: 2 } }
    train { steps: 5 batch_per_rank: 4 evaluate_every: -1 }
    plugins: ["tcp", "fifo_sched", "sgd", "cpu_ops", "profile_ops"]
    cpu_ops { threads: 1 })";

std::string Plugins(const std::string& communicator, const std::string& scheduler) {
  return "plugins=" + communicator + "," + scheduler + ",sgd,cpu_ops,profile_ops";
}

config::Config Load(const std::string& text, std::vector<std::string> overrides = {}) {
  return ValueOf(config::Config::Load({.text = text,
                                       .origin = "test",
                                       .overrides = std::move(overrides),
                                       .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}}));
}

std::vector<config::Config> LoadAll(const std::vector<std::string>& schedulers,
                                    std::vector<std::string> overrides = {}) {
  std::vector<config::Config> configs;
  overrides.emplace_back();
  for (const std::string& scheduler : schedulers) {
    overrides.back() = Plugins("tcp", scheduler);
    configs.push_back(Load(kConfig, overrides));
  }
  return configs;
}

const std::vector<std::string> kSchedulers = {"sequential_sched", "fifo_sched", "priority_sched",
                                              "dear_sched"};

// C is about 5 ms with two ranks.
StudyOptions Options(std::vector<int32_t> ranks) {
  return {.network = {.bits_per_second = 1.84e9, .goodput = 1, .latency_ns = 1000},
          .ranks = std::move(ranks),
          .measured_steps = 1};
}

// What two ranks under `config` would have recorded if forward tasks took 1 ms, backward tasks 2 ms
// and everything else 1 us, one after another.
TracedRun MakeTrace(const config::Config& config) {
  const auto single = ValueOf(LocalProfiler::Create(config, launch::MemberLog({})));
  const auto model = ValueOf(StepModel::Create(*single, 4));
  trace::Trace trace;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto plan = ValueOf(model->PlanFor(rank, 2, 2, 0));
    trace::RankTimeline timeline{.rank = rank, .world_size = 2};
    const auto duration = [](const exec::Task& task) {
      return task.info.kind == TaskKind::kForward    ? 1'000'000
             : task.info.kind == TaskKind::kBackward ? 2'000'000
                                                     : 1'000;
    };
    test::RecordInOrder(plan.graph, 4, duration, 0, 0, &timeline);
    trace.ranks.push_back(std::move(timeline));
  }
  return {std::move(trace), config};
}

TEST(StudyTest, EverySchedulerStaysWithinItsBounds) {
  const std::vector<config::Config> configs = LoadAll(kSchedulers);
  // Traced under the one that cuts gradients into slices, so that all others have other buckets.
  const auto studies = ValueOf(RunStudy(configs, MakeTrace(configs[2]), Options({2, 4})));
  ASSERT_EQ(studies.size(), kSchedulers.size());
  for (const SchedulerStudy& study : studies) {
    EXPECT_EQ(study.alone.communication, 0) << study.scheduler;
    EXPECT_NEAR(study.alone.step, 9e-3, 0.2e-3) << study.scheduler;  // the loss is a layer too
    for (const Prediction& row : study.predictions) {
      SCOPED_TRACE(study.scheduler + " " + std::to_string(row.ranks));
      EXPECT_GT(row.step, row.full_overlap());
      EXPECT_LT(row.step, 1.1 * row.no_overlap());  // latencies, tickets, overheads
      EXPECT_LT(row.scaling_efficiency, 1);
      EXPECT_NEAR(row.exposed, row.step - study.alone.step, 0.1e-3);
    }
    // 2 (n-1)/n of the bytes.
    EXPECT_NEAR(study.predictions[1].communication / study.predictions[0].communication, 1.5, 0.01);
  }
  const Prediction& sequential = studies[0].predictions[0];
  EXPECT_GE(sequential.step, sequential.no_overlap());
  EXPECT_EQ(Ranking(studies, 2).front(), "priority_sched");
  for (const SchedulerStudy& study : studies) {  // on so fast a link some gain nothing
    EXPECT_LE(study.predictions[0].step, sequential.step + 1e-6) << study.scheduler;
  }
}

// 1 MB are a dozen messages of tcp and one of a communicator that does not say how it sends.
TEST(StudyTest, TheCommunicatorSaysHowItSends) {
  StudyOptions options = Options({2});
  options.network.latency_ns = 1'000'000;
  std::vector<double> exposed;
  for (const char* communicator : {"tcp", "null"}) {
    const std::vector<config::Config> configs = {
        Load(kConfig, {Plugins(communicator, "sequential_sched")})};
    const auto studies = ValueOf(RunStudy(configs, MakeTrace(configs[0]), options));
    exposed.push_back(studies[0].predictions[0].exposed);
  }
  EXPECT_GT(exposed[0], exposed[1] + 8e-3);
}

TEST(StudyTest, TraceOfAnotherModelIsRefused) {
  const std::vector<config::Config> configs = LoadAll({"fifo_sched"});
  TracedRun traced = MakeTrace(configs[0]);
  traced.trace.ranks[1].tasks[0].name = "forward other";
  const auto studies = RunStudy(configs, traced, Options({2}));
  EXPECT_THAT(studies, FailsWith(StatusCode::kBadData, HasSubstr("forward other")));
}

TEST(StudyTest, WithoutATraceTheComputeIsMeasured) {
  const auto studies = ValueOf(RunStudy(LoadAll(kSchedulers), std::nullopt, Options({2})));
  for (const SchedulerStudy& study : studies) {
    // All take it from one measurement; a sleep may be late, but never early by more than it was
    // late before.
    EXPECT_EQ(study.alone.backward, studies[0].alone.backward) << study.scheduler;
    EXPECT_GT(study.alone.forward + study.alone.backward, 3e-3) << study.scheduler;
    EXPECT_GT(study.predictions[0].step, study.alone.step) << study.scheduler;
  }
}

TEST(StudyTest, ShardedRunsArePlannedSharded) {
  const auto configs = LoadAll({"priority_sched", "dear_sched"}, {"train.shard_optimizer=true"});
  const auto studies = ValueOf(RunStudy(configs, MakeTrace(configs[0]), Options({2, 64})));
  for (const SchedulerStudy& study : studies) {
    EXPECT_GT(study.predictions[1].step, study.predictions[0].step) << study.scheduler;
  }
  EXPECT_THAT(RunStudy(configs, std::nullopt, Options({2})), IsOk());  // measured
}

TEST(StudyTest, ServersOfTheirOwnAreBeside) {
  StudyOptions options = Options({2, 8});
  options.network.servers = 2;
  const auto studies = ValueOf(RunStudy(LoadAll(kSchedulers), std::nullopt, options));
  for (const SchedulerStudy& study : studies) {
    SCOPED_TRACE(study.scheduler);
    EXPECT_EQ(study.alone.communication, 0);
    for (const Prediction& row : study.predictions) {
      EXPECT_GE(row.step, row.full_overlap() * 0.999);
      EXPECT_NEAR(row.serial, 2 * row.communication, 0.01 * row.serial);
    }
    // Eight ranks share the links of two servers, and two ranks have one each.
    EXPECT_NEAR(study.predictions[1].communication, 4 * study.predictions[0].communication,
                0.01 * study.predictions[1].communication);
  }
}

// Hier pays for bytes, and costs latencies.
TEST(StudyTest, SaysWhetherHierPays) {
  const std::vector<config::Config> configs = LoadAll({"fifo_sched"});
  const TracedRun traced = MakeTrace(configs[0]);
  StudyOptions options = Options({2, 4});
  options.network.ranks_per_host = 2;
  const auto studies = ValueOf(RunStudy(configs, traced, options));
  EXPECT_THAT(Ranking(studies, 4), ElementsAre("fifo_sched+hier", "fifo_sched"));
  EXPECT_EQ(studies[0].predictions[0].step, studies[1].predictions[0].step) << "one host";
  EXPECT_THAT(FormatStudy(studies, options), HasSubstr("2 ranks of each host share the link"));
  options.network.bits_per_second = 1e13;
  options.network.inner_latency_ns = 1'000'000;
  options.network.latency_ns = 1;
  EXPECT_EQ(Ranking(ValueOf(RunStudy(configs, traced, options)), 4).front(), "fifo_sched");
  options.network.servers = 2;
  EXPECT_THAT(RunStudy(configs, std::nullopt, options),
              FailsWith(StatusCode::kInvalidArgument, HasSubstr("--ranks-per-host")));
}

TEST(StudyTest, FourThousandRanks) {
  StudyOptions options = Options({4096});
  options.network.pattern = Pattern::kRing;
  const auto studies = ValueOf(RunStudy(LoadAll(kSchedulers), std::nullopt, options));
  for (const SchedulerStudy& study : studies) {
    // At least one transfer of 8190 rounds of a microsecond each is seen.
    EXPECT_GT(study.predictions[0].step, 8190e-6) << study.scheduler;
  }
}

SchedulerStudy MadeUp(const std::string& name, double step) {
  return {.scheduler = name,
          .alone = {.samples = 4, .forward = 0.1, .backward = 0.2, .step = 0.3},
          .predictions = {{.ranks = 2,
                           .samples = 4,
                           .forward = 0.1,
                           .backward = 0.2,
                           .communication = 0.25,
                           .serial = 0.25,
                           .step = step,
                           .exposed = step - 0.3,
                           .scaling_efficiency = 0.3 / step}}};
}

TEST(StudyTest, BoundsAndRanking) {
  const std::vector<SchedulerStudy> studies = {MadeUp("slow", 0.55), MadeUp("fast", 0.4)};
  const Prediction& row = studies[0].predictions[0];
  EXPECT_DOUBLE_EQ(row.no_overlap(), 0.55);
  EXPECT_DOUBLE_EQ(row.backward_overlap(), 0.35);
  EXPECT_DOUBLE_EQ(row.full_overlap(), 0.3);
  EXPECT_DOUBLE_EQ(row.schedule_efficiency(), 0.3 / 0.55);
  EXPECT_THAT(Ranking(studies, 2), ElementsAre("fast", "slow"));
  EXPECT_THAT(Ranking(studies, 3), ElementsAre());
}

TEST(StudyTest, TextAndJsonSayTheSame) {
  const std::vector<SchedulerStudy> studies = {MadeUp("slow", 0.55), MadeUp("fast", 0.4)};
  const StudyOptions options = Options({2});
  const std::string text = FormatStudy(studies, options);
  EXPECT_THAT(text, HasSubstr("550.00"));
  EXPECT_THAT(text, HasSubstr("400.00"));
  EXPECT_THAT(text, HasSubstr("fast slow"));
  const auto json = nlohmann::json::parse(FormatStudyJson(studies, options));
  EXPECT_EQ(json["schedulers"][1]["name"], "fast");
  EXPECT_EQ(json["schedulers"][1]["predictions"][0]["ranks"], 1);
  EXPECT_EQ(json["schedulers"][1]["predictions"][1]["step_seconds"], 0.4);
  EXPECT_EQ(json["fastest_first"][0]["schedulers"][0], "fast");
  EXPECT_EQ(json["network"]["pattern"], "exchange");
}

}  // namespace
}  // namespace engine::simulate
