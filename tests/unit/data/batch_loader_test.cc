#include "app/data/batch_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "app/checkpoint/sample_position.h"
#include "tests/support/expect_status.h"
#include "tools/conform/allocation_count.h"

namespace engine {
namespace {

using data::LoaderOptions;
using train::BatchRequest;

// Sample i is {i, epoch}, its target {i, -i}. There are none to hold out.
class CountingDataset final : public DatasetBase {
 public:
  using Before = std::function<Status(const FillCall&)>;
  explicit CountingDataset(int64_t size, Before before = {}) : size_(size), before_(before) {}
  DatasetInfo info() const noexcept override {
    return {.name = "counting",
            .inputs = {&input_, 1},
            .targets = {&target_, 1},
            .train_samples = size_,
            .digest = {}};
  }
  Status Open(uint64_t) noexcept override { return {}; }
  Status Fill(const FillCall& call) const noexcept override {
    if (before_) ENGINE_RETURN_IF_ERROR(before_(call));
    auto* input = static_cast<float*>(call.tensors[0]);
    auto* target = static_cast<int32_t*>(call.tensors[1]);
    for (const int64_t index : call.indices) {
      *input++ = static_cast<float>(index);
      *input++ = static_cast<float>(call.epoch);
      *target++ = static_cast<int32_t>(index);
      *target++ = static_cast<int32_t>(-index);
    }
    return {};
  }

 private:
  const int64_t size_;
  const Before before_;
  const SampleTensor input_{.name = "input", .shape = {2}};
  const SampleTensor target_{.name = "target", .shape = {2}, .dtype = DType::kInt32};
};

const int32_t* Targets(const train::Batch& batch) {
  return static_cast<const int32_t*>(batch.target);
}

std::unique_ptr<train::BatchStream> Make(const Dataset& dataset, const BatchRequest& request,
                                         const LoaderOptions& options = {}) {
  return ValueOf(data::LoadBatches(dataset, request, options));
}

// The indices of one batch; its values must be those of the samples.
std::vector<int32_t> Take(train::BatchStream& loader, train::Batch* copy) {
  *copy = *ValueOf(loader.Next());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(copy->input) % 64, 0u);
  std::vector<int32_t> indices;
  for (int64_t i = 0; i < copy->samples; ++i) {
    const float* input = static_cast<const float*>(copy->input) + 2 * i;
    indices.push_back(Targets(*copy)[2 * i]);
    EXPECT_EQ(Targets(*copy)[2 * i + 1], -indices.back());
    EXPECT_EQ(input[0], static_cast<float>(indices.back()));
    EXPECT_EQ(input[1], static_cast<float>(copy->epoch));
  }
  return indices;
}

// All batches of some epochs from request.first_step on, as rank 0 of 1 sees them or as the ranks
// see them together.
std::vector<std::vector<int32_t>> Steps(const Dataset& dataset, int epochs, BatchRequest request,
                                        const LoaderOptions& options = {}) {
  const auto first = static_cast<size_t>(request.first_step);
  std::vector<std::vector<int32_t>> steps;
  for (int32_t rank = 0; rank < request.world_size; ++rank) {
    request.rank = rank;
    const auto loader = Make(dataset, request, options);
    const size_t end = static_cast<size_t>(loader->steps_per_epoch()) * static_cast<size_t>(epochs);
    steps.resize(end - first);
    for (size_t s = first; s < end; ++s) {
      train::Batch batch;
      const std::vector<int32_t> indices = Take(*loader, &batch);
      EXPECT_EQ(batch.samples,
                (batch.global_samples + request.world_size - 1 - rank) / request.world_size)
          << "the larger shares first";
      EXPECT_EQ(batch.epoch, s / static_cast<size_t>(loader->steps_per_epoch()));
      EXPECT_EQ(batch.step_in_epoch, static_cast<int64_t>(s) % loader->steps_per_epoch());
      const int64_t left =
          dataset.info().train_samples - batch.step_in_epoch * request.global_batch;
      EXPECT_EQ(batch.global_samples, std::min(request.global_batch, left));
      std::vector<int32_t>& step = steps[s - first];
      EXPECT_EQ(batch.first_sample, static_cast<int64_t>(step.size()));
      step.insert(step.end(), indices.begin(), indices.end());
    }
  }
  return steps;
}

TEST(BatchLoader, RanksTogetherSeeWhatOneRankSees) {
  for (const auto& [size, batch] :
       {std::pair<int64_t, int64_t>{64, 16}, {50, 8}, {23, 7}, {7, 8}, {5, 100}, {9, 1}, {1, 1}}) {
    const CountingDataset dataset(size);
    for (const bool shuffle : {true, false}) {
      const LoaderOptions options{.seed = 3, .shuffle = shuffle};
      const auto alone = Steps(dataset, 3, {.global_batch = batch}, options);
      for (const int32_t world_size : {2, 3, 4, 8}) {
        EXPECT_EQ(Steps(dataset, 3, {.global_batch = batch, .world_size = world_size}, options),
                  alone)
            << size << " samples, batch " << batch << ", " << world_size << " ranks";
      }
    }
  }
}

TEST(BatchLoader, EveryEpochHoldsEverySampleOnceInAnotherOrder) {
  const CountingDataset dataset(50);
  const BatchRequest request{.global_batch = 8};
  const auto steps = Steps(dataset, 3, request, {.seed = 5});
  std::vector<std::vector<int32_t>> epochs(3);
  for (size_t s = 0; s < steps.size(); ++s) {
    epochs[s / 7].insert(epochs[s / 7].end(), steps[s].begin(), steps[s].end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (auto& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (int32_t i = 0; i < 50; ++i) ASSERT_EQ(epoch[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(Steps(dataset, 3, request, {.seed = 5}), steps);
  EXPECT_NE(Steps(dataset, 3, request, {.seed = 6}), steps);
}

TEST(BatchLoader, UnshuffledIsTheOrderOfTheDataset) {
  const auto steps = Steps(CountingDataset(5), 2, {.global_batch = 2}, {.shuffle = false});
  EXPECT_THAT(steps, ::testing::ElementsAre(std::vector{0, 1}, std::vector{2, 3}, std::vector{4},
                                            std::vector{0, 1}, std::vector{2, 3}, std::vector{4}));
}

// 50 samples in steps of 8 end in a step of 2, which leaves some ranks without any.
TEST(BatchLoader, GoesOnAtAnyStepAsIfItHadBegunThere) {
  const CountingDataset dataset(50);
  for (const bool shuffle : {true, false}) {
    LoaderOptions options{.seed = 3, .shuffle = shuffle};
    const auto whole = Steps(dataset, 4, {.global_batch = 8}, options);
    ASSERT_EQ(whole.size(), 28u);
    for (const int64_t first : {0, 1, 5, 6, 7, 13, 14, 20, 27}) {
      for (const int32_t world_size : {1, 2, 3, 8}) {
        for (const int32_t prefetch : {0, 1, 5, 64}) {
          const BatchRequest request{
              .global_batch = 8, .world_size = world_size, .first_step = first};
          options.prefetch = prefetch;
          const std::vector<std::vector<int32_t>> rest(whole.begin() + first, whole.end());
          EXPECT_EQ(Steps(dataset, 4, request, options), rest)
              << "from " << first << ", " << world_size << " ranks, prefetch " << prefetch;
        }
      }
    }
  }
}

TEST(BatchLoader, ADistantStepIsReachedAtOnce) {
  const CountingDataset dataset(50);
  const auto loader = Make(dataset, {.global_batch = 8, .first_step = int64_t{7} << 55});
  train::Batch batch;
  EXPECT_EQ(Take(*loader, &batch).size(), 8u);
  EXPECT_EQ(batch.epoch, uint64_t{1} << 55);
  EXPECT_EQ(batch.step_in_epoch, 0);
}

TEST(SamplePosition, TheSameBatchesGoOnWhereTheyWere) {
  for (const auto& [size, batch] :
       {std::pair<int64_t, int64_t>{64, 16}, {50, 8}, {7, 8}, {9, 1}, {1, 1}}) {
    for (int64_t step = 0; step < 30; ++step) {
      const checkpoint::SamplePosition position = checkpoint::PositionOf(step, size, batch);
      EXPECT_LT(position.samples, size);
      EXPECT_EQ(checkpoint::BatchAt(position, size, batch), step)
          << size << " samples, batch " << batch;
    }
  }
}

TEST(SamplePosition, OtherBatchesLeaveNoSampleOut) {
  const CountingDataset dataset(50);
  const auto before = Steps(dataset, 2, {.global_batch = 8});
  for (const int64_t other : {1, 3, 4, 7, 16, 50, 100}) {
    for (int64_t step = 1; step < 14; ++step) {
      const checkpoint::SamplePosition position = checkpoint::PositionOf(step, 50, 8);
      EXPECT_EQ(position.epoch, step / 7);
      EXPECT_EQ(position.samples, step % 7 * 8);
      const int64_t first = checkpoint::BatchAt(position, 50, other);
      const auto after = Steps(dataset, 2, {.global_batch = other, .first_step = first});
      std::vector<int> seen(50);
      for (int64_t s = 0; s < step; ++s) {
        for (const int32_t index : before[static_cast<size_t>(s)])
          ++seen[static_cast<size_t>(index)];
      }
      int64_t again = 0;
      for (const auto& batch : after) {
        again += static_cast<int64_t>(batch.size());
        for (const int32_t index : batch) ++seen[static_cast<size_t>(index)];
      }
      // Of two epochs; less than one batch of the new size comes again.
      EXPECT_GE(*std::min_element(seen.begin(), seen.end()), 2) << other << " after " << step;
      EXPECT_LT(again + position.epoch * 50 + position.samples - 100, other);
    }
  }
}

// The batch in use is not written to while others are made ahead.
TEST(BatchLoader, ABatchStaysUntilTheNextCall) {
  const CountingDataset dataset(1000);
  const auto loader = Make(dataset, {.global_batch = 10}, {.prefetch = 1});
  for (int step = 0; step < 300; ++step) {
    const auto next = ValueOf(loader->Next());
    const std::vector<int32_t> before(Targets(*next), Targets(*next) + 20);
    std::this_thread::yield();
    const std::vector<int32_t> after(Targets(*next), Targets(*next) + 20);
    ASSERT_EQ(before, after) << step;
  }
}

TEST(BatchLoader, AnErrorComesAfterTheBatchesBeforeItAndStays) {
  const CountingDataset dataset(100, [](const FillCall& call) {
    const bool bad = std::find(call.indices.begin(), call.indices.end(), 25) != call.indices.end();
    return bad ? Status::Error(StatusCode::kBadData, "sample 25 is bad") : Status();
  });
  const auto loader = Make(dataset, {.global_batch = 10}, {.shuffle = false, .prefetch = 5});
  train::Batch batch;
  EXPECT_EQ(Take(*loader, &batch).front(), 0);
  EXPECT_EQ(Take(*loader, &batch).front(), 10);
  for (int again = 0; again < 3; ++again) {
    EXPECT_THAT(loader->Next(), FailsWith(StatusCode::kBadData, HasSubstr("sample 25 is bad")));
  }
}

// Two inputs, a scalar and bytes, and two targets: sample i is {i}, {i, i + 1} and {2 i}, {3 i}.
class ManyTensors : public DatasetBase {
 public:
  DatasetInfo info() const noexcept override {
    return {.name = "many",
            .inputs = inputs_,
            .targets = targets_,
            .train_samples = 10,
            .held_out_samples = 100,
            .digest = {}};
  }
  Status Open(uint64_t) noexcept override { return {}; }
  Status Fill(const FillCall& call) const noexcept override {
    for (size_t i = 0; i < call.indices.size(); ++i) {
      const int64_t index = call.indices[i];
      static_cast<float*>(call.tensors[0])[i] = static_cast<float>(index);
      static_cast<uint8_t*>(call.tensors[1])[2 * i] = static_cast<uint8_t>(index);
      static_cast<uint8_t*>(call.tensors[1])[2 * i + 1] = static_cast<uint8_t>(index + 1);
      static_cast<float*>(call.tensors[2])[i] = static_cast<float>(2 * index);
      static_cast<int32_t*>(call.tensors[3])[i] = static_cast<int32_t>(3 * index);
    }
    return {};
  }

 private:
  const SampleTensor inputs_[2] = {{.name = "number", .shape = {}},
                                   {.name = "bytes", .shape = {2}, .dtype = DType::kUint8}};
  const SampleTensor targets_[2] = {{.name = "double", .shape = {}},
                                    {.name = "triple", .shape = {}, .dtype = DType::kInt32}};
};

TEST(BatchLoader, HasEveryTensorOfASampleOfTheSplitThatIsAskedFor) {
  const ManyTensors dataset;
  const auto loader = Make(dataset, {.split = Split::kHeldOut, .global_batch = 90},
                           {.shuffle = false, .prefetch = 0});
  EXPECT_EQ(loader->steps_per_epoch(), 2);
  const train::Batch& batch = *ValueOf(loader->Next());
  ASSERT_EQ(batch.others.size(), 2u);
  for (size_t i = 0; i < 90; ++i) {  // more than are filled at once
    EXPECT_EQ(static_cast<const float*>(batch.input)[i], static_cast<float>(i));
    EXPECT_EQ(static_cast<const float*>(batch.target)[i], static_cast<float>(2 * i));
    EXPECT_EQ(static_cast<const uint8_t*>(batch.others[0])[2 * i + 1], i + 1);
    EXPECT_EQ(static_cast<const int32_t*>(batch.others[1])[i], static_cast<int32_t>(3 * i));
  }
}

TEST(BatchLoader, EndsAtAnyTime) {
  const CountingDataset dataset(20000);
  for (int taken = 0; taken < 20; ++taken) {
    const auto loader = Make(dataset, {.global_batch = 10000}, {.prefetch = taken % 4});
    for (int i = 0; i < taken % 3; ++i) ASSERT_TRUE(loader->Next().ok());
  }
}

TEST(BatchLoader, DoesNotAllocateAfterTheFirstBatch) {
  std::atomic<uint64_t> allocated{0};  // on the producer's thread since it filled the first batch
  const CountingDataset dataset(50, [&](const FillCall&) {
    thread_local const conform::AllocationCounter since_first;
    allocated = since_first.count();
    return Status();
  });
  const auto loader = Make(dataset, {.global_batch = 8});
  ASSERT_TRUE(loader->Next().ok());
  const conform::AllocationCounter here;
  bool all_ok = true;
  for (int step = 0; step < 200; ++step) all_ok = loader->Next().ok() && all_ok;
  EXPECT_EQ(here.count(), 0u);
  EXPECT_EQ(allocated, 0u);
  EXPECT_TRUE(all_ok);
}

TEST(BatchLoader, ABatchThatTakesTooLongIsATimeout) {
  std::atomic<bool> released{false};
  const CountingDataset dataset(10, [&](const FillCall&) {
    while (!released) std::this_thread::yield();
    return Status();
  });
  const auto loader = Make(dataset, {.global_batch = 2}, {.timeout_ms = 5});
  EXPECT_THAT(loader->Next(), FailsWith(StatusCode::kTimeout,
                                        HasSubstr("counting: no batch was ready within 5 ms")));
  released = true;
}

TEST(BatchLoader, OptionsOutOfRange) {
  const CountingDataset dataset(10);
  const auto code = [](const Dataset& data, const BatchRequest& request,
                       const LoaderOptions& options = {}) {
    return data::LoadBatches(data, request, options).status().code();
  };
  for (const BatchRequest& request :
       {BatchRequest{.global_batch = 0}, BatchRequest{.rank = -1}, BatchRequest{.rank = 1},
        BatchRequest{.world_size = 0}, BatchRequest{.first_step = -1},
        BatchRequest{.split = Split::kHeldOut}}) {
    EXPECT_EQ(code(dataset, request), StatusCode::kInvalidArgument);
  }
  for (const LoaderOptions& options :
       {LoaderOptions{.prefetch = -1}, LoaderOptions{.prefetch = 1 << 30},
        LoaderOptions{.timeout_ms = 0}}) {
    EXPECT_EQ(code(dataset, {}, options), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(code(CountingDataset(0), {}), StatusCode::kInvalidArgument);
  // A batch larger than the dataset costs no more than the dataset; more samples than memory fail.
  EXPECT_EQ(code(dataset, {.global_batch = int64_t{1} << 60}), StatusCode::kOk);
  const CountingDataset endless(int64_t{1} << 61);
  EXPECT_THAT(data::LoadBatches(endless, {.global_batch = int64_t{1} << 61}, {}),
              FailsWith(StatusCode::kResourceExhausted, HasSubstr("lower the batch size")));
}

}  // namespace
}  // namespace engine
