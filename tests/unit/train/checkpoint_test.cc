#include "core/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/storage/temp_folder.h"
#include "tests/unit/train/lone_rank.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kConfig[] =
    "model { mlp { hidden: [5] } frozen: \"linear1.bias\" } data { synthetic {} }\n"
    "train { steps: 1 global_batch: 2 }\n"
    "plugins: [\"null\", \"fifo_sched\", \"adamw\", \"cpu_ops\"]\n";
constexpr ModelInputs kInputs{
    .input_shape = {3}, .target_shape = {}, .classes = 2, .max_samples = 2};

std::vector<float> Copy(const TensorView& view) {
  return {view.f32(), view.f32() + view.count()};
}

class CheckpointTest : public ::testing::Test {
 protected:
  // A model after one step, written to file.
  void SetUp() override {
    auto rank = LoneRank::Make(kConfig);
    ASSERT_TRUE(rank.ok()) << rank.status().message();
    rank_ = std::move(*rank);
    auto executor = rank_->MakeExecutor(kInputs);
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    executor_ = std::move(*executor);
    ASSERT_TRUE(executor_->memory().InitializeParameters().ok());
    const float input[] = {1, -2, 3, 0.5f, 2, -1};
    const int32_t target[] = {0, 1};
    ASSERT_TRUE(
        executor_->Step({.input = input, .target = target, .samples = 2, .learning_rate = 0.1f})
            .ok());
    ASSERT_TRUE(executor_->Flush().ok());
    const Status written =
        WriteCheckpoint(path_, *executor_, {.step = 41, .config = kConfig, .optimizer = "adamw"});
    ASSERT_TRUE(written.ok()) << written.message();
  }

  // A model for inference that has the parameters of the file, or the reason why not.
  Result<std::unique_ptr<ModelMemory>> Load(const char* config, const ModelInputs& inputs,
                                            const std::string& path) {
    ENGINE_ASSIGN_OR_RETURN(other_, LoneRank::Make(config));
    ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<ModelMemory> model, other_->MakeModel(inputs));
    ENGINE_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenCheckpoint(path));
    ENGINE_RETURN_IF_ERROR(LoadParameters(*opened.file, *model));
    return model;
  }

  // The file's tensors and metadata with a change, as another file.
  std::string Changed(const std::function<void(std::vector<NamedTensor>&,
                                               std::map<std::string, std::string>&)>& change) {
    const auto file = SafetensorsFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status().message();
    std::vector<NamedTensor> tensors((*file)->tensors().begin(), (*file)->tensors().end());
    std::map<std::string, std::string> metadata = (*file)->metadata();
    metadata.erase("digest");
    change(tensors, metadata);
    const Status written = WriteSafetensors(folder_ / "changed", tensors, metadata);
    EXPECT_TRUE(written.ok()) << written.message();
    return folder_ / "changed";
  }

  testing::TempFolder folder_;
  const std::string path_ = folder_ / "model.safetensors";
  std::unique_ptr<LoneRank> rank_, other_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(CheckpointTest, GivesBackWhatWasWritten) {
  const auto opened = OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->info.step, 41);
  EXPECT_EQ(opened->info.config, kConfig);
  EXPECT_EQ(opened->info.optimizer, "adamw");

  const auto model = Load(kConfig, kInputs, path_);
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Copy((*model)->parameter(i)), Copy(executor_->memory().parameter(i)));
  }
}

TEST_F(CheckpointTest, HoldsTheStateOfWhatIsTrained) {
  const auto opened = OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const OptimizerTraits traits = executor_->optimizer_traits();
  ASSERT_GT(traits.state_count, 0);
  const auto& parameters = executor_->memory().graph().parameters;
  for (int32_t s = 0; s < traits.state_count; ++s) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto stored = opened->file->Find(
          "optimizer/" + std::string(traits.state_names[s].view()) + "/" + parameters[i].name);
      ASSERT_EQ(stored.ok(), parameters[i].trainable) << parameters[i].name;
      if (!stored.ok()) continue;
      const std::vector<float> values = Copy(*stored);
      EXPECT_EQ(values, Copy(executor_->optimizer_state(static_cast<int32_t>(i), s)));
      EXPECT_NE(values, std::vector<float>(values.size(), 0.0f)) << parameters[i].name;
    }
  }
}

TEST_F(CheckpointTest, ParametersOfAnotherShapeAreRefused) {
  ModelInputs wider = kInputs;
  wider.input_shape = {4};
  const auto model = Load(kConfig, wider, path_);
  EXPECT_EQ(model.status().code(), StatusCode::kBadData);
  EXPECT_THAT(model.status().message(), HasSubstr("'linear1.weight'"));
}

TEST_F(CheckpointTest, AMissingParameterIsNamed) {
  const std::string path = Changed([](auto& tensors, auto&) {
    std::erase_if(tensors, [](const NamedTensor& t) { return t.name == "linear2.bias"; });
  });
  const auto model = Load(kConfig, kInputs, path);
  EXPECT_EQ(model.status().code(), StatusCode::kBadData);
  EXPECT_THAT(model.status().message(), HasSubstr("'linear2.bias'"));
}

TEST_F(CheckpointTest, OtherSafetensorsAreNoCheckpoint) {
  const auto refuse = [&](const char* key, const char* value) {
    const std::string path = Changed([&](auto&, auto& metadata) {
      if (value == nullptr) {
        metadata.erase(key);
      } else {
        metadata[key] = value;
      }
    });
    const auto opened = OpenCheckpoint(path);
    EXPECT_EQ(opened.status().code(), StatusCode::kBadData) << key;
    EXPECT_THAT(opened.status().message(), AllOf(HasSubstr(path), HasSubstr("not a checkpoint")));
  };
  refuse("format", "engine.checkpoint/2");
  refuse("format", nullptr);
  refuse("step", "many");
  refuse("config", nullptr);
}

TEST_F(CheckpointTest, AFailedWriteLeavesTheOldFile) {
  const std::string before = testing::ReadWhole(path_);
  EXPECT_EQ(WriteCheckpoint(folder_ / "none/model", *executor_, {.config = "x"}).code(),
            StatusCode::kStorage);
  EXPECT_EQ(testing::ReadWhole(path_), before);
}

}  // namespace
}  // namespace engine::test
