#include "tests/support/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "app/checkpoint/safetensors.h"
#include "app/launch/launch.h"
#include "app/launch/log.h"
#include "app/run/serve.h"
#include "app/run/training.h"

namespace engine::test {
namespace {

class Recorder final : public run::RunObserver {
 public:
  Recorder(Training* training, int64_t dies_after, std::string checkpoint)
      : training_(training), dies_after_(dies_after), checkpoint_(std::move(checkpoint)) {}
  Status OnStep(const train::StepReport& report) override {
    training_->losses.push_back(report.loss);
    training_->samples.push_back(report.samples);
    if (report.step != dies_after_) return {};
    for (int i = 0; i < 2000 && !std::filesystem::exists(checkpoint_); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return Status::Error(StatusCode::kInternal, "the end that the test asked for");
  }
  Status OnEvaluation(const train::EvaluationReport& report) override {
    training_->evaluations.push_back(report);
    return {};
  }

 private:
  Training* const training_;
  const int64_t dies_after_;
  const std::string checkpoint_;
};

}  // namespace

Training TrainWithThreads(const std::string& config_text, const Members& members,
                          const std::vector<std::string>& overrides, bool expect_ok) {
  std::vector<Training> trainings(static_cast<size_t>(members.ranks));
  std::vector<std::vector<float>> buffers(trainings.size()), parameters(trainings.size());
  const auto config = config::Config::Load({.text = config_text,
                                            .origin = "test",
                                            .overrides = overrides,
                                            .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}});
  EXPECT_TRUE(config.ok()) << config.status().message();
  if (!config.ok()) return {.status = config.status()};
  const launch::LaunchPlan plan{.mode = launch::LaunchPlan::Mode::kThreads,
                                .info = {.world_size = members.ranks,
                                         .local_world_size = members.ranks,
                                         .servers = members.servers},
                                .source = "test"};
  const launch::LaunchOutcome outcome =
      launch::Launch(plan, {}, [&](base::RankContext& rank) -> Status {
        rank.log = launch::MemberLog(rank.info);
        if (rank.info.is_server != 0) return run::ServeParameters(*config, rank);
        Recorder recorder(&trainings[static_cast<size_t>(rank.info.rank)],
                          rank.info.rank == 0 ? members.dies_after : -1,
                          config->output().checkpoint);
        ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                                run::MakeTrainer(*config, rank, recorder, nullptr, members.resume));
        ENGINE_RETURN_IF_ERROR(run::RunTraining(*config, rank, recorder, *trainer));
        const exec::ModelMemory& memory = trainer->executor().memory();
        buffers[static_cast<size_t>(rank.info.rank)].assign(
            memory.parameters() + memory.layout().buffer_begin,
            memory.parameters() + memory.layout().total_count);
        parameters[static_cast<size_t>(rank.info.rank)].assign(
            memory.parameters(), memory.parameters() + memory.layout().total_count);
        return {};
      });
  trainings[0].buffers = std::move(buffers);
  trainings[0].parameters = std::move(parameters);
  trainings[0].status = outcome.status;
  trainings[0].exit_code = outcome.exit_code;
  if (expect_ok) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  }
  return std::move(trainings[0]);
}

std::map<std::string, std::vector<uint8_t>> TensorsOf(const std::string& checkpoint) {
  std::map<std::string, std::vector<uint8_t>> tensors;
  const auto file = checkpoint::SafetensorsFile::Open(checkpoint);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return tensors;
  for (const checkpoint::NamedTensor& tensor : (*file)->tensors()) {
    const auto* data = static_cast<const uint8_t*>(tensor.view.data);
    tensors[tensor.name].assign(data, data + tensor.view.size_bytes());
  }
  EXPECT_FALSE(tensors.empty()) << checkpoint;
  return tensors;
}

std::vector<float> FloatsOf(const std::vector<uint8_t>& bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

std::vector<double> LossesOf(const std::string& metrics) {
  std::vector<double> losses;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object["event"] == "step") losses.push_back(object["loss"]);
  }
  return losses;
}

nlohmann::json LastEvent(const std::string& metrics, const std::string& event) {
  nlohmann::json last;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_discarded() && object["event"] == event) last = object;
  }
  return last;
}

void ExpectSameLosses(const std::vector<double>& actual, const std::vector<double>& expected,
                      double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance * expected[i]) << what << ", step " << i + 1;
  }
}

void ExpectSameTensors(const std::string& actual, const std::string& expected, double tolerance) {
  const auto all = TensorsOf(actual);
  for (const auto& [name, bytes] : TensorsOf(expected)) {
    ASSERT_TRUE(all.contains(name)) << name;
    const std::vector<float> a = FloatsOf(all.at(name)), b = FloatsOf(bytes);
    ASSERT_EQ(a.size(), b.size()) << name;
    float largest = 0;
    for (float value : b) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], tolerance * largest) << name << " at " << i;
    }
  }
}

}  // namespace engine::test
