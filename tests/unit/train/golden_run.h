// A model with the initial parameters of a file of tests/golden, and the one batch of that file.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "app/checkpoint/safetensors.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

namespace engine::test {

class GoldenRun {
 public:
  Status Open(const std::string& name, const std::string& config, const ModelInputs& inputs) {
    ENGINE_ASSIGN_OR_RETURN(file_,
                            checkpoint::SafetensorsFile::Open(GoldenFile(name + ".safetensors")));
    ENGINE_ASSIGN_OR_RETURN(rank_, SingleRank::Make(config));
    samples_ = inputs.max_samples;
    ENGINE_ASSIGN_OR_RETURN(executor_, rank_->MakeExecutor(inputs));
    for (size_t i = 0; i < parameters().size(); ++i) {
      const TensorView view = memory().parameter(static_cast<int32_t>(i));
      const TensorView initial = Stored("initial." + parameters()[i].name);
      EXPECT_TRUE(initial.shape == view.shape) << parameters()[i].name;
      ENGINE_RETURN_IF_ERROR(SetParameter(memory(), static_cast<int32_t>(i), initial));
    }
    return {};
  }

  const checkpoint::SafetensorsFile& file() const { return *file_; }
  exec::ModelMemory& memory() { return executor_->memory(); }
  const std::vector<graph::Parameter>& parameters() { return memory().graph().parameters; }

  TensorView Stored(const std::string& name) const {
    const auto found = file_->Find(name);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : TensorView{};
  }

  Status SetBatch() {
    return memory().SetBatch(Stored("input").data, Stored("target").i32(), samples_);
  }

  // The mean loss before the update.
  double Step(uint64_t step, float learning_rate) {
    const auto result = StepAndFlush(*executor_, {.input = Stored("input").data,
                                                  .target = Stored("target").i32(),
                                                  .samples = samples_,
                                                  .step = step,
                                                  .learning_rate = learning_rate});
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->loss_sum / result->count : NAN;
  }

 private:
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
  std::unique_ptr<SingleRank> rank_;
  std::unique_ptr<exec::Executor> executor_;
  int64_t samples_ = 0;
};

}  // namespace engine::test
