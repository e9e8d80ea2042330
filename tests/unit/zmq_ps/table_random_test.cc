// Three workers, several cells, and messages and tasks in random order.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "table.h"
#include "table_bench.h"
#include "tools/conform/allocation_count.h"

namespace engine::zmq_ps {
namespace {

constexpr uint32_t kWorkers = 3;
constexpr uint64_t kSteps = 12;
constexpr int32_t kStaleness = 1;

// One cell, and all values that it may have at any time.
struct Model {
  Model(uint64_t number_of_bucket, const Floats& start)
      : bucket(number_of_bucket), plain(start), history{start} {}

  uint64_t bucket;
  Plain plain;
  std::vector<Floats> history;  // after each update
  uint64_t number = 0;          // of the last update
  std::map<uint64_t, std::vector<Floats>> collected;
  // The version that contains a worker's push.
  std::map<std::pair<uint32_t, uint64_t>, size_t> version_of;
};

struct Worker {
  uint64_t step = 1;
  std::vector<size_t> to_push, to_pull;  // cells
  size_t unanswered = 0;
  bool there = true;
};

class RandomRun : public ::testing::TestWithParam<std::tuple<UpdateMode, uint64_t>> {
 protected:
  RandomRun() : table_(TraitsOf(mode(), kStaleness), kWorkers, optimizer_), random_(seed()) {
    for (uint64_t bucket = 1; bucket <= 4; ++bucket) {
      Model& model = models_.emplace_back(bucket, RandomFloats(10000, 1000 + bucket));
      EXPECT_TRUE(table_.Register(RegistrationOf(0, bucket), kSpans).ok());
      const Header store = RequestOf(Operation::kStore, 0, {.state = -1}, bucket);
      EXPECT_TRUE(table_.Store(store, MessageOf(model.plain.values)).ok());
    }
    for (Worker& worker : workers_) BeginStep(worker);
  }

  static UpdateMode mode() { return std::get<0>(GetParam()); }
  static uint64_t seed() { return std::get<1>(GetParam()); }
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  void BeginStep(Worker& worker) {
    for (size_t i = 0; i < models_.size(); ++i) {
      worker.to_push.push_back(i);
      worker.to_pull.push_back(i);
    }
  }
  size_t TakeAny(std::vector<size_t>& from) {
    const size_t at = Below(from.size());
    const size_t taken = from[at];
    from.erase(from.begin() + static_cast<ptrdiff_t>(at));
    return taken;
  }

  // One message of a worker: pushes and pulls of a step in any order. False: it waits, or is done.
  bool Send(uint32_t index) {
    Worker& worker = workers_[index];
    if (!worker.there || worker.step > kSteps) return false;
    const size_t messages = worker.to_push.size() + worker.to_pull.size();
    if (messages == 0) return false;
    if (Below(messages) < worker.to_push.size()) {
      SendPush(index, TakeAny(worker.to_push));
      EndStep(worker);  // one that is a repetition may be the last message of a step
    } else {
      const size_t cell = TakeAny(worker.to_pull);
      Header pull = RequestOf(Operation::kPull, index, {.step = worker.step}, models_[cell].bucket);
      pull.request = worker.step * 100 + cell;
      EXPECT_TRUE(table_.Pull(pull, {}).ok());
      ++worker.unanswered;
    }
    return true;
  }

  void SendPush(uint32_t index, size_t cell) {
    Model& model = models_[cell];
    const uint64_t step = workers_[index].step;
    const Header push = RequestOf(
        Operation::kPush, index, {.step = step, .learning_rate = 0.01f, .weight = 4}, model.bucket);
    const Floats gradient = RandomFloats(10000, step * 100 + cell * 10 + index);
    const Status status = table_.Push(push, {}, MessageOf(gradient));
    EXPECT_TRUE(status.ok()) << status.message();
    if (mode() == UpdateMode::kSync) {
      std::vector<Floats>& all = model.collected[step];
      all.resize(kWorkers);
      all[index] = gradient;
      if (std::any_of(all.begin(), all.end(), [](const Floats& one) { return one.empty(); })) {
        return;
      }
      model.plain.Update(optimizer_, SumOf(all), 1 / 12.0f, 0.01f, step);
    } else {
      if (model.version_of.contains({index, step})) return;  // a repetition after a loss
      model.number = std::max(model.number + 1, step);
      model.plain.Update(optimizer_, gradient, 1 / 4.0f, 0.01f, model.number);
    }
    model.history.push_back(model.plain.values);
    model.version_of[{index, step}] = model.history.size() - 1;
  }

  void TakeAnswers() {
    std::vector<PullAnswer> answers;
    table_.TakeReady(&answers);
    for (PullAnswer& answer : answers) {
      Worker& worker = workers_[answer.worker];
      ASSERT_TRUE(answer.status.ok()) << answer.status.message();
      ASSERT_TRUE(worker.there);
      ASSERT_EQ(answer.request / 100, worker.step);
      Check(answer);
      if (Below(3) == 0) Hold(std::move(answer.data));
      --worker.unanswered;
      EndStep(worker);
    }
  }
  void EndStep(Worker& worker) {
    if (worker.unanswered + worker.to_push.size() + worker.to_pull.size() > 0) return;
    ++worker.step;
    BeginStep(worker);
  }

  // The values are one version of the cell; new enough, and not of before others are near enough.
  void Check(const PullAnswer& answer) {
    const uint64_t step = answer.request / 100;
    const Model& model = models_[answer.request % 100];
    const Floats values = FloatsOf(answer.data);
    if (mode() == UpdateMode::kSync) {
      ASSERT_GE(model.history.size(), step + 1);
      EXPECT_TRUE(SameBits(values, model.history[step]));
      return;
    }
    size_t version = model.history.size();
    while (version > 0 && !SameBits(values, model.history[version - 1])) --version;
    ASSERT_GT(version, 0u) << "values that the cell never had";
    --version;
    EXPECT_GE(version, model.version_of.at({answer.worker, step}));
    if (mode() == UpdateMode::kAsync) return;
    for (uint32_t other = 0; other < kWorkers; ++other) {
      if (other == lost_ || step <= kStaleness) continue;
      EXPECT_GE(version, model.version_of.at({other, step - kStaleness}));
    }
  }

  // As a message that waits to be sent, or for an acknowledgement.
  void Hold(::zmq::message_t message) {
    Floats values = FloatsOf(message);
    held_.emplace_back(std::move(message), std::move(values));
    if (held_.size() < 6) return;
    const size_t at = Below(held_.size());
    EXPECT_TRUE(SameBits(FloatsOf(held_[at].first), held_[at].second));
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(at));
  }

  void BeginTasks() {
    while (UpdateTask* const task = table_.NextWork()) under_way_.push_back(task);
  }
  bool EndATask() {
    if (under_way_.empty()) return false;
    const auto task = under_way_.begin() + static_cast<ptrdiff_t>(Below(under_way_.size()));
    zmq_ps::Run(**task);
    EXPECT_TRUE((*task)->status.ok()) << (*task)->status.message();
    table_.Finished(*task);
    under_way_.erase(task);
    return true;
  }

  // Until nothing more can happen.
  void Drive() {
    while (true) {
      bool progress = false;
      const auto first = static_cast<uint32_t>(Below(kWorkers));
      for (uint32_t i = 0; i < kWorkers && !progress; ++i) progress = Send((first + i) % kWorkers);
      if (!progress || Below(2) == 0) BeginTasks();
      if (!progress || Below(2) == 0) progress = EndATask() || progress;
      TakeAnswers();
      if (!progress) return;
    }
  }

  MomentumOptimizer optimizer_;
  Table table_;
  std::mt19937_64 random_;
  std::deque<Model> models_;
  Worker workers_[kWorkers];
  uint32_t lost_ = kWorkers;
  std::vector<std::pair<::zmq::message_t, Floats>> held_;
  std::vector<UpdateTask*> under_way_;
};

TEST_P(RandomRun, EndsWithTheValuesOfAPlainLoop) {
  Drive();
  for (const Worker& worker : workers_) EXPECT_EQ(worker.step, kSteps + 1);
  for (uint32_t worker = 0; worker < kWorkers; ++worker) EXPECT_EQ(table_.LastStep(worker), kSteps);
  for (Model& model : models_) {
    ASSERT_TRUE(table_.Pull(RequestOf(Operation::kPull, 0, {}, model.bucket), {}).ok());
    std::vector<PullAnswer> answers;
    table_.TakeReady(&answers);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_TRUE(SameBits(FloatsOf(answers[0].data), model.plain.values));
    EXPECT_EQ(model.history.size() - 1, mode() == UpdateMode::kSync ? kSteps : kSteps * kWorkers);
  }
}

// Not with kSync: there a loss ends the run, which is the rule of the server's loop.
class RandomRunWithALoss : public RandomRun {};

TEST_P(RandomRunWithALoss, GoesOnWithoutTheLostAndThenWithAnother) {
  Worker& worker = workers_[1];
  // Lost within a step, so that some cells have its push and others do not.
  while (worker.step < 4) {
    for (uint32_t i = 0; i < kWorkers; ++i) Send(i);
    BeginTasks();
    EndATask();
    TakeAnswers();
  }
  while (worker.to_push.size() > 2) Send(1);
  worker = {};
  worker.there = false;
  lost_ = 1;
  table_.Lose(1);
  Drive();
  EXPECT_EQ(workers_[0].step, kSteps + 1);
  EXPECT_EQ(workers_[2].step, kSteps + 1);
  EXPECT_EQ(table_.LastStep(1), 3u);
  // The one in its place goes on from there, and repeats what some cells have.
  table_.Join(1);
  worker = {};
  worker.step = table_.LastStep(1) + 1;
  BeginStep(worker);
  Drive();
  EXPECT_EQ(worker.step, kSteps + 1);
  for (Model& model : models_) EXPECT_EQ(model.history.size() - 1, kSteps * kWorkers);
}

const auto kNameOf = [](const auto& info) {
  return std::string(Name(std::get<0>(info.param))) + std::to_string(std::get<1>(info.param));
};

INSTANTIATE_TEST_SUITE_P(Table, RandomRun,
                         ::testing::Combine(::testing::Values(UpdateMode::kSync,
                                                              UpdateMode::kBounded,
                                                              UpdateMode::kAsync),
                                            ::testing::Values(1u, 2u, 3u, 4u)),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Table, RandomRunWithALoss,
                         ::testing::Combine(::testing::Values(UpdateMode::kBounded,
                                                              UpdateMode::kAsync),
                                            ::testing::Values(1u, 2u, 3u, 4u)),
                         kNameOf);

TEST(Table, AllocatesNothingOnceItHasWhatItNeeds) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded, UpdateMode::kAsync}) {
    TableBench bench(mode, 2);
    std::vector<PullAnswer> answers;
    const auto step = [&](uint64_t number) {
      for (uint32_t worker = 0; worker < 2; ++worker) {
        ::zmq::message_t data(40000);  // by malloc
        std::memset(data.data(), 0, data.size());
        const Header push = RequestOf(Operation::kPush, worker, {.step = number, .weight = 1});
        const Status pushed = bench.table.Push(push, {}, std::move(data));
        const Status pulled = bench.TryPull(worker, {.step = number});
        ENGINE_CHECK(pushed.ok() && pulled.ok());
      }
      bench.RunAll();  // the answers of the step before are still there: values are copied
      bench.table.TakeReady(&answers);
      ENGINE_CHECK(answers.size() == 2, "%zu answers", answers.size());
    };
    const conform::AllocationCounter first;
    for (uint64_t number = 1; number <= 4; ++number) step(number);
    EXPECT_GT(first.count(), 0u);
    const int copies = bench.copies;
    const conform::AllocationCounter counter;
    for (uint64_t number = 5; number <= 10; ++number) step(number);
    EXPECT_EQ(counter.count(), 0u) << Name(mode);
    EXPECT_GT(bench.copies, copies);
  }
}

}  // namespace
}  // namespace engine::zmq_ps
