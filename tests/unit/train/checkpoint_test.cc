#include "app/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/single_rank.h"

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
    ASSERT_TRUE(executor_);
    const float input[] = {1, -2, 3, 0.5f, 2, -1};
    const int32_t target[] = {0, 1};
    ASSERT_TRUE(
        executor_->Step({.input = input, .target = target, .samples = 2, .learning_rate = 0.1f})
            .ok());
    ASSERT_TRUE(executor_->Flush().ok());
    const Status written = checkpoint::WriteCheckpoint(path_, *executor_,
                                                       {.step = 41,
                                                        .config = kConfig,
                                                        .optimizer = "adamw",
                                                        .seed = 7,
                                                        .world_size = 3,
                                                        .global_batch = 12,
                                                        .data = "crc",
                                                        .position = {.epoch = 5, .samples = 24}});
    ASSERT_TRUE(written.ok()) << written.message();
  }

  // A model for inference that has the parameters of the file, or the reason why not.
  Result<std::unique_ptr<exec::ModelMemory>> Load(const char* config, const ModelInputs& inputs,
                                                  const std::string& path) {
    ENGINE_ASSIGN_OR_RETURN(other_, SingleRank::Make(config));
    ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<exec::ModelMemory> model, other_->MakeModel(inputs));
    ENGINE_ASSIGN_OR_RETURN(const checkpoint::OpenedCheckpoint opened,
                            checkpoint::OpenCheckpoint(path));
    ENGINE_RETURN_IF_ERROR(checkpoint::LoadParameters(*opened.file, *model));
    return model;
  }

  // The file's tensors and metadata with a change, as another file.
  std::string Changed(const std::function<void(std::vector<checkpoint::NamedTensor>&,
                                               std::map<std::string, std::string>&)>& change) {
    const auto file = checkpoint::SafetensorsFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status().message();
    std::vector<checkpoint::NamedTensor> tensors((*file)->tensors().begin(),
                                                 (*file)->tensors().end());
    std::map<std::string, std::string> metadata = (*file)->metadata();
    metadata.erase("digest");
    change(tensors, metadata);
    const Status written = checkpoint::WriteSafetensors(folder_ / "changed", tensors, metadata);
    EXPECT_TRUE(written.ok()) << written.message();
    return folder_ / "changed";
  }

  testing::TempFolder folder_;
  const std::string path_ = folder_ / "model.safetensors";
  const RankWithExecutor made_ = MakeRankWithExecutor(kConfig, kInputs);
  SingleRank* const rank_ = made_.rank.get();
  exec::Executor* const executor_ = made_.executor.get();
  std::unique_ptr<SingleRank> other_;
};

TEST_F(CheckpointTest, GivesBackWhatWasWritten) {
  const auto opened = checkpoint::OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->info.step, 41);
  EXPECT_EQ(opened->info.config, kConfig);
  EXPECT_EQ(opened->info.optimizer, "adamw");
  EXPECT_EQ(opened->info.seed, 7u);
  EXPECT_EQ(opened->info.world_size, 3);
  EXPECT_EQ(opened->info.global_batch, 12);
  EXPECT_EQ(opened->info.data, "crc");
  EXPECT_EQ(opened->info.position.epoch, 5);
  EXPECT_EQ(opened->info.position.samples, 24);
  EXPECT_EQ(opened->info.optimizer_state_version,
            executor_->updates().optimizer().state_format_version);
  EXPECT_THAT(opened->digest, ::testing::StartsWith("xxh3_128:"));

  const auto model = Load(kConfig, kInputs, path_);
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Copy((*model)->parameter(i)), Copy(executor_->memory().parameter(i)));
  }
}

TEST_F(CheckpointTest, HoldsTheStateOfWhatIsTrained) {
  const auto opened = checkpoint::OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const OptimizerTraits traits = executor_->updates().optimizer();
  ASSERT_GT(traits.state_count, 0);
  const auto& parameters = executor_->memory().graph().parameters;
  for (int32_t s = 0; s < traits.state_count; ++s) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto stored = opened->file->Find(
          "optimizer/" + std::string(traits.state_names[s].view()) + "/" + parameters[i].name);
      ASSERT_EQ(stored.ok(), parameters[i].trainable) << parameters[i].name;
      if (!stored.ok()) continue;
      const std::vector<float> values = Copy(*stored);
      EXPECT_EQ(values, Copy(executor_->updates().state(static_cast<int32_t>(i), s)));
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
    std::erase_if(tensors,
                  [](const checkpoint::NamedTensor& t) { return t.name == "linear2.bias"; });
  });
  const auto model = Load(kConfig, kInputs, path);
  EXPECT_EQ(model.status().code(), StatusCode::kBadData);
  EXPECT_THAT(model.status().message(), HasSubstr("'linear2.bias'"));
}

TEST_F(CheckpointTest, AParameterThatTheModelLacksIsNamed) {
  const std::string path = Changed([](auto& tensors, auto&) {
    tensors.push_back(tensors.front());
    tensors.back().name = "linear3.weight";
  });
  const auto model = Load(kConfig, kInputs, path);
  EXPECT_EQ(model.status().code(), StatusCode::kBadData);
  EXPECT_THAT(model.status().message(),
              AllOf(HasSubstr("another model"), HasSubstr("'linear3.weight'")));
}

TEST_F(CheckpointTest, StatesAreThoseThatWereWritten) {
  const auto opened = checkpoint::OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const exec::ModelMemory& memory = executor_->memory();
  const OptimizerTraits traits = executor_->updates().optimizer();
  for (int32_t s = 0; s < traits.state_count; ++s) {
    const auto states = checkpoint::ReadStates(*opened, memory, traits, s);
    ASSERT_TRUE(states.ok()) << states.status().message();
    ASSERT_EQ(static_cast<int64_t>(states->size()), memory.layout().trainable_count);
    // With the padding: nothing but zeros is ever there.
    const float* const all = executor_->updates().states().At(s, graph::kNone, 0);
    EXPECT_EQ(*states, std::vector<float>(all, all + states->size()));
  }
}

TEST_F(CheckpointTest, EachRankOfAnyNumberFindsItsPartOfTheStates) {
  const auto opened = checkpoint::OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const OptimizerTraits traits = rank_->optimizer_traits();
  for (const int32_t world_size : {2, 3, 8}) {
    const auto model = rank_->MakeShardedModel(kInputs, world_size);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const exec::FlatLayout& layout = (*model)->layout();
    std::vector<std::vector<float>> together(static_cast<size_t>(traits.state_count));
    for (auto& whole : together) {
      whole.assign(static_cast<size_t>(layout.trainable_count), -1);
    }
    for (int32_t r = 0; r < world_size; ++r) {
      const RankInfo rank{.rank = r, .world_size = world_size};
      const auto states = exec::OptimizerStates::Create(**model, traits, true, rank);
      ASSERT_TRUE(states.ok()) << states.status().message();
      const Status loaded = checkpoint::LoadStates(*opened, **model, traits, rank, *states);
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      for (size_t u = 0; u < layout.buckets.size(); ++u) {
        const int64_t part = layout.buckets[u].count / world_size;
        const int64_t begin = layout.buckets[u].offset + r * part;
        for (int32_t s = 0; s < traits.state_count; ++s) {
          std::copy_n(states->At(s, static_cast<int32_t>(u), begin), part,
                      together[static_cast<size_t>(s)].begin() + begin);
        }
      }
    }
    for (int32_t s = 0; s < traits.state_count; ++s) {
      const auto expected = checkpoint::ReadStates(*opened, **model, traits, s);
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      EXPECT_EQ(together[static_cast<size_t>(s)], *expected) << world_size << " ranks, state " << s;
    }
  }
}

TEST_F(CheckpointTest, StatesThatDoNotFitAreRefused) {
  const auto refusal = [&](const auto& change) {
    const auto opened = checkpoint::OpenCheckpoint(Changed(change));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    const Status status =
        checkpoint::LoadStates(*opened, executor_->memory(), executor_->updates().optimizer(), {},
                               executor_->updates().states());
    EXPECT_EQ(status.code(), StatusCode::kBadData);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto&, auto& metadata) { metadata["optimizer_state_version"] = "9"; }),
              AllOf(HasSubstr("'adamw'"), HasSubstr("have format 9")));
  EXPECT_THAT(refusal([](auto& tensors, auto&) {
                std::erase_if(tensors, [](const checkpoint::NamedTensor& t) {
                  return t.name.starts_with("optimizer/") && t.name.ends_with("linear2.weight");
                });
              }),
              AllOf(HasSubstr("parameter 'linear2.weight'"), HasSubstr("other options")));
  EXPECT_THAT(
      refusal([](auto& tensors, auto&) {
        for (checkpoint::NamedTensor& tensor : tensors) {
          if (tensor.name.starts_with("optimizer/") && tensor.name.ends_with("linear1.weight")) {
            tensor.view.shape = {3, 5};
          }
        }
      }),
      HasSubstr("/linear1.weight' has another shape"));
}

TEST_F(CheckpointTest, StatesWithoutUseAreNamed) {
  const std::string path = Changed([](auto& tensors, auto&) {
    for (const char* name : {"optimizer/m/linear1.bias", "optimizer/x/linear2.bias"}) {
      tensors.push_back(tensors.front());
      tensors.back().name = name;
    }
  });
  // linear1.bias is frozen, and adamw keeps no "x".
  EXPECT_THAT(checkpoint::StateWarnings(ValueOf(checkpoint::OpenCheckpoint(path)), *executor_, 3),
              ::testing::UnorderedElementsAre(
                  "this run has no use for 'optimizer/m/linear1.bias' of the checkpoint",
                  "this run has no use for 'optimizer/x/linear2.bias' of the checkpoint"));
}

TEST_F(CheckpointTest, AnOpenFileStaysWhatItWasWhenItIsReplaced) {
  const auto opened = checkpoint::OpenCheckpoint(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto stored = opened->file->Find("linear2.weight");
  ASSERT_TRUE(stored.ok());
  const std::vector<float> before = Copy(*stored);
  for (int64_t i = 0; i < executor_->memory().layout().total_count; ++i) {
    executor_->memory().parameters()[i] = 7;
  }
  ASSERT_TRUE(checkpoint::WriteCheckpoint(path_, *executor_, {.step = 42, .config = kConfig}).ok());
  EXPECT_EQ(Copy(*stored), before);
  EXPECT_NE(before, std::vector<float>(before.size(), 7));
  const auto replaced = checkpoint::OpenCheckpoint(path_);
  ASSERT_TRUE(replaced.ok()) << replaced.status().message();
  EXPECT_EQ(replaced->info.step, 42);
  EXPECT_NE(replaced->digest, opened->digest);
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
    const auto opened = checkpoint::OpenCheckpoint(path);
    EXPECT_EQ(opened.status().code(), StatusCode::kBadData) << key;
    EXPECT_THAT(opened.status().message(), AllOf(HasSubstr(path), HasSubstr("not a checkpoint")));
  };
  refuse("format", "engine.checkpoint/2");
  refuse("format", nullptr);
  refuse("step", "many");
  refuse("step", "-1");
  refuse("config", nullptr);
  refuse("global_batch", "12 or so");
  refuse("epoch", "-3");
  refuse("world_size", "4294967297");
}

TEST_F(CheckpointTest, AFailedWriteLeavesTheOldFile) {
  const std::string before = testing::ReadWhole(path_);
  EXPECT_EQ(checkpoint::WriteCheckpoint(folder_ / "none/model", *executor_, {.config = "x"}).code(),
            StatusCode::kStorage);
  EXPECT_EQ(testing::ReadWhole(path_), before);
}

TEST_F(CheckpointTest, NumbersThatAreNotFiniteLeaveTheOldFile) {
  const std::string before = testing::ReadWhole(path_);
  const auto refusal = [&](float* number, float value) {
    std::swap(*number, value);
    const Status status =
        checkpoint::WriteCheckpoint(path_, *executor_, {.step = 42, .config = kConfig});
    EXPECT_EQ(status.code(), StatusCode::kConfig);
    std::swap(*number, value);
    return std::string(status.message());
  };
  const exec::ModelMemory& memory = executor_->memory();
  const TensorView last =
      memory.parameter(static_cast<int32_t>(memory.graph().parameters.size()) - 1);
  EXPECT_THAT(refusal(last.f32() + last.count() - 1, NAN),
              HasSubstr("'" + memory.graph().parameters.back().name + "' is not finite"));
  EXPECT_THAT(refusal(executor_->updates().state(0, 1).f32(), -INFINITY),
              HasSubstr("is not finite after step 42"));
  EXPECT_EQ(testing::ReadWhole(path_), before);
  EXPECT_TRUE(checkpoint::WriteCheckpoint(path_, *executor_, {.step = 42, .config = kConfig}).ok());
}

}  // namespace
}  // namespace engine::test
