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
    ASSERT_THAT(
        executor_->Step({.input = input, .target = target, .samples = 2, .learning_rate = 0.1f}),
        IsOk());
    ASSERT_THAT(executor_->Flush(), IsOk());
    ASSERT_THAT(Write({.step = 41,
                       .config = kConfig,
                       .optimizer = "adamw",
                       .seed = 7,
                       .world_size = 3,
                       .global_batch = 12,
                       .data = "crc",
                       .position = {.epoch = 5, .samples = 24}}),
                IsOk());
  }
  Status Write(const checkpoint::CheckpointInfo& info, const std::string& path = "") {
    ENGINE_ASSIGN_OR_RETURN(const auto content, checkpoint::ContentOf(*executor_, info));
    return checkpoint::WriteCheckpoint(path.empty() ? path_ : path, content);
  }
  checkpoint::OpenedCheckpoint Open() { return ValueOf(checkpoint::OpenCheckpoint(path_)); }

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
  using Change = std::function<void(std::vector<checkpoint::NamedTensor>&,
                                    std::map<std::string, std::string>&)>;
  std::string Changed(const Change& change) {
    const auto file = ValueOf(checkpoint::SafetensorsFile::Open(path_));
    std::vector<checkpoint::NamedTensor> tensors(file->tensors().begin(), file->tensors().end());
    std::map<std::string, std::string> metadata = file->metadata();
    metadata.erase("digest");
    change(tensors, metadata);
    EXPECT_THAT(checkpoint::WriteSafetensors(folder_ / "changed", tensors, metadata), IsOk());
    return folder_ / "changed";
  }
  static Change Without(const std::string& tensor) {
    return [tensor](auto& tensors, auto&) {
      std::erase_if(tensors, [&](const auto& candidate) { return candidate.name == tensor; });
    };
  }
  static Change WithCopyAs(const std::vector<std::string>& names) {
    return [names](auto& tensors, auto&) {
      for (const std::string& name : names) tensors.push_back({name, tensors.front().view});
    };
  }

  test::TempFolder folder_;
  const std::string path_ = folder_ / "model.safetensors";
  const RankWithExecutor made_ = MakeRankWithExecutor(kConfig, kInputs);
  SingleRank* const rank_ = made_.rank.get();
  exec::Executor* const executor_ = made_.executor.get();
  std::unique_ptr<SingleRank> other_;
};

TEST_F(CheckpointTest, GivesBackWhatWasWritten) {
  const auto opened = Open();
  const checkpoint::CheckpointInfo& info = opened.info;
  EXPECT_EQ(info.step, 41);
  EXPECT_EQ(info.config, kConfig);
  EXPECT_EQ(info.optimizer, "adamw");
  EXPECT_EQ(info.optimizer_state_version, executor_->updates().optimizer().state_format_version);
  EXPECT_EQ(info.seed, 7u);
  EXPECT_EQ(info.world_size, 3);
  EXPECT_EQ(info.global_batch, 12);
  EXPECT_EQ(info.data, "crc");
  EXPECT_EQ(info.position.epoch, 5);
  EXPECT_EQ(info.position.samples, 24);
  EXPECT_THAT(opened.digest, ::testing::StartsWith("xxh3_128_sum:"));

  const auto model = ValueOf(Load(kConfig, kInputs, path_));
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Copy(model->parameter(i)), Copy(executor_->memory().parameter(i)));
  }
}

TEST_F(CheckpointTest, HoldsTheStateOfWhatIsTrained) {
  const auto opened = Open();
  const exec::ModelMemory& memory = executor_->memory();
  const OptimizerTraits traits = executor_->updates().optimizer();
  ASSERT_GT(traits.state_count, 0);
  const auto& parameters = memory.graph().parameters;
  for (int32_t s = 0; s < traits.state_count; ++s) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto stored = opened.file->Find(
          "optimizer/" + std::string(traits.state_names[s].view()) + "/" + parameters[i].name);
      ASSERT_EQ(stored.ok(), parameters[i].trainable) << parameters[i].name;
      if (!stored.ok()) continue;
      EXPECT_THAT(Copy(*stored), ::testing::Not(::testing::Each(0.0f))) << parameters[i].name;
    }
    // With the padding: nothing but zeros is ever there.
    const float* const all = executor_->updates().states().At(s, graph::kNone, 0);
    EXPECT_EQ(ValueOf(checkpoint::ReadStates(opened, memory, traits, s)),
              std::vector<float>(all, all + memory.layout().trainable_count));
  }
}

TEST_F(CheckpointTest, ParametersThatDoNotFitAreNamed) {
  ModelInputs wider = kInputs;
  wider.input_shape = {4};
  EXPECT_THAT(Load(kConfig, wider, path_),
              FailsWith(StatusCode::kBadData, HasSubstr("'linear1.weight' has another shape")));
  EXPECT_THAT(Load(kConfig, kInputs, Changed(Without("linear2.bias"))),
              FailsWith(StatusCode::kBadData, HasSubstr("'linear2.bias'")));
  EXPECT_THAT(Load(kConfig, kInputs, Changed(WithCopyAs({"linear3.weight"}))),
              FailsWith(StatusCode::kBadData,
                        AllOf(HasSubstr("another model"), HasSubstr("'linear3.weight'"))));
}

TEST_F(CheckpointTest, EachRankOfAnyNumberFindsItsPartOfTheStates) {
  const auto opened = Open();
  const OptimizerTraits traits = rank_->optimizer_traits();
  for (const int32_t world_size : {2, 3, 8}) {
    const auto model = ValueOf(rank_->MakeShardedModel(kInputs, world_size));
    const exec::FlatLayout& layout = model->layout();
    std::vector<std::vector<float>> together(
        static_cast<size_t>(traits.state_count),
        std::vector<float>(static_cast<size_t>(layout.trainable_count), -1));
    for (int32_t r = 0; r < world_size; ++r) {
      const RankInfo rank{.rank = r, .world_size = world_size};
      const auto states = ValueOf(exec::OptimizerStates::Create(*model, traits, true, rank));
      ASSERT_THAT(checkpoint::LoadStates(opened, *model, traits, rank, states), IsOk());
      for (size_t u = 0; u < layout.buckets.size(); ++u) {
        const int64_t part = layout.buckets[u].count / world_size;
        const int64_t begin = layout.buckets[u].offset + r * part;
        for (int32_t s = 0; s < traits.state_count; ++s) {
          std::copy_n(states.At(s, static_cast<int32_t>(u), begin), part,
                      together[static_cast<size_t>(s)].begin() + begin);
        }
      }
    }
    for (int32_t s = 0; s < traits.state_count; ++s) {
      EXPECT_EQ(together[static_cast<size_t>(s)],
                ValueOf(checkpoint::ReadStates(opened, *model, traits, s)))
          << world_size << " ranks, state " << s;
    }
  }
}

TEST_F(CheckpointTest, StatesThatDoNotFitAreRefused) {
  const exec::UpdateStrategy& updates = executor_->updates();
  const std::string first = "optimizer/" + std::string(updates.optimizer().state_names[0].view());
  const auto load = [&](const Change& change) {
    const auto opened = ValueOf(checkpoint::OpenCheckpoint(Changed(change)));
    return checkpoint::LoadStates(opened, executor_->memory(), updates.optimizer(), {},
                                  updates.states());
  };
  EXPECT_THAT(
      load([](auto&, auto& metadata) { metadata["optimizer_state_version"] = "9"; }),
      FailsWith(StatusCode::kBadData, AllOf(HasSubstr("'adamw'"), HasSubstr("have format 9"))));
  EXPECT_THAT(load(Without(first + "/linear2.weight")),
              FailsWith(StatusCode::kBadData, AllOf(HasSubstr("parameter 'linear2.weight'"),
                                                    HasSubstr("other options"))));
  const auto turned = [&](auto& tensors, auto&) {
    for (auto& tensor : tensors) {
      if (tensor.name == first + "/linear1.weight") tensor.view.shape = {3, 5};
    }
  };
  EXPECT_THAT(load(turned),
              FailsWith(StatusCode::kBadData, HasSubstr("/linear1.weight' has another shape")));
}

// linear1.bias is frozen, and adamw keeps no "x".
TEST_F(CheckpointTest, StatesWithoutUseAreNamed) {
  const auto opened = ValueOf(checkpoint::OpenCheckpoint(
      Changed(WithCopyAs({"optimizer/m/linear1.bias", "optimizer/x/linear2.bias"}))));
  EXPECT_THAT(checkpoint::StateWarnings(opened, *executor_, 3),
              ::testing::UnorderedElementsAre(
                  "this run has no use for 'optimizer/m/linear1.bias' of the checkpoint",
                  "this run has no use for 'optimizer/x/linear2.bias' of the checkpoint"));
}

TEST_F(CheckpointTest, AnOpenFileStaysWhatItWasWhenItIsReplaced) {
  const auto opened = Open();
  const TensorView stored = ValueOf(opened.file->Find("linear2.weight"));
  const std::vector<float> before = Copy(stored);
  std::fill_n(executor_->memory().parameters(), executor_->memory().layout().total_count, 7);
  ASSERT_THAT(Write({.step = 42, .config = kConfig}), IsOk());
  EXPECT_EQ(Copy(stored), before);
  EXPECT_THAT(before, ::testing::Not(::testing::Each(7)));
  const auto replaced = Open();
  EXPECT_EQ(replaced.info.step, 42);
  EXPECT_NE(replaced.digest, opened.digest);
}

TEST_F(CheckpointTest, OtherSafetensorsAreNoCheckpoint) {
  const std::pair<const char*, const char*> changes[] = {{"format", "engine.checkpoint/3"},
                                                         {"format", ""},
                                                         {"step", "many"},
                                                         {"step", "-1"},
                                                         {"step", ""},
                                                         {"config", ""},
                                                         {"global_batch", "12 or so"},
                                                         {"epoch", "-3"},
                                                         {"world_size", "4294967297"}};
  for (const auto& [key, value] : changes) {
    const std::string path = Changed([key = key, value = value](auto&, auto& metadata) {
      metadata.erase(key);
      if (*value != 0) metadata[key] = value;
    });
    EXPECT_THAT(
        checkpoint::OpenCheckpoint(path),
        FailsWith(StatusCode::kBadData, AllOf(HasSubstr(path), HasSubstr("not a checkpoint"))))
        << key << " " << value;
  }
}

TEST_F(CheckpointTest, AFailedWriteLeavesTheOldFile) {
  const std::string before = test::ReadWhole(path_);
  EXPECT_THAT(Write({.config = "x"}, folder_ / "none/model"), FailsWith(StatusCode::kStorage));
  const auto refuse = [&](float* number, float value, const std::string& why) {
    std::swap(*number, value);
    EXPECT_THAT(Write({.step = 42, .config = kConfig}),
                FailsWith(StatusCode::kConfig, HasSubstr(why)));
    std::swap(*number, value);
  };
  const exec::ModelMemory& memory = executor_->memory();
  const TensorView last =
      memory.parameter(static_cast<int32_t>(memory.graph().parameters.size()) - 1);
  refuse(last.f32() + last.count() - 1, NAN,
         "'" + memory.graph().parameters.back().name + "' is not finite");
  refuse(executor_->updates().state(0, 1).f32(), -INFINITY, "is not finite after step 42");
  EXPECT_EQ(test::ReadWhole(path_), before);
  EXPECT_THAT(Write({.step = 42, .config = kConfig}), IsOk());
}

}  // namespace
}  // namespace engine::test
