// Rows that are pushed and pulled alone: the values are those of whole pushes with zeros elsewhere.
#include <gmock/gmock.h>

#include <algorithm>

#include "training.h"

namespace engine::zmq_ps {
namespace {

constexpr int64_t kRow = 48, kRows = 500;
constexpr uint64_t kKey = 5;
constexpr uint32_t kWorkers = 2;

using Rows = std::vector<int32_t>;

// Of a worker in a step: some, the same ones on both workers, the last one, none.
Rows RowsOf(uint32_t worker, int step) {
  if (step == 3) return {};
  if (step == 2) return {7, 8, 499};
  Rows rows;
  for (int32_t row = static_cast<int32_t>(worker); row < kRows; row += 37) rows.push_back(row);
  return rows;
}

// Zeros but for the rows.
std::vector<float> Gradient(uint32_t worker, int step) {
  const std::vector<float> all = GradientOf(worker, step, {kKey, kRow * kRows});
  std::vector<float> gradient(all.size());
  for (const int32_t row : RowsOf(worker, step)) {
    std::copy_n(all.begin() + row * kRow, kRow, gradient.begin() + row * kRow);
  }
  return gradient;
}

class RowsOfUnits : public ::testing::Test {
 protected:
  // What the servers have after four steps; the bytes that went there are in pushed_.
  Weights Train(bool sparse) {
    const TrainingSettings training{.workers = kWorkers, .units = {{kKey, kRow * kRows, kRow}}};
    Cluster cluster({.workers = kWorkers,
                     .servers = 2,
                     .slice_bytes = 1 << 14,
                     .update = ParameterTraits{.mode = UpdateMode::kSync}});
    EXPECT_TRUE(cluster.ok());
    std::vector<Weights> weights(kWorkers);
    RunWorkers(kWorkers, [&](uint32_t worker) {
      const Status status =
          Prepare(cluster.client(worker), worker, training, cluster.optimizer(), &weights[worker]);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    const uint64_t before = Payload(cluster);
    RunWorkers(kWorkers, [&](uint32_t worker) {
      for (int step = 1; step <= 4; ++step) Step(cluster, worker, step, sparse);
    });
    pushed_ = Payload(cluster) - before;
    Weights all(kRow * kRows);
    const Status loaded = cluster.client(1).Load(kKey, -1, all.data(), 10000);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    return all;
  }

  static uint64_t Payload(Cluster& cluster) {
    return cluster.server(0).traffic().payload_in + cluster.server(1).traffic().payload_in;
  }

  static void Step(Cluster& cluster, uint32_t worker, int step, bool sparse) {
    ASSERT_TRUE(cluster.client(worker).BeginStep(StepOf({}, worker, step)).ok());
    const std::vector<float> gradient = Gradient(worker, step);
    const Rows rows = RowsOf(worker, step);
    Transfer transfer{
        .kind = TransferKind::kPush, .send = gradient.data(), .count = kRow * kRows, .key = kKey};
    static constexpr int32_t kNoRow = 0;
    if (sparse) transfer.rows = rows.empty() ? &kNoRow : rows.data();
    if (sparse) transfer.row_count = static_cast<int64_t>(rows.size());
    const Status pushed = cluster.Run(worker, transfer);
    ASSERT_TRUE(pushed.ok()) << pushed.message();
    std::vector<float> values(gradient.size(), 77.0f), whole(gradient.size());
    transfer.kind = TransferKind::kPull;
    transfer.send = nullptr;
    transfer.recv = values.data();
    const Status pulled = cluster.Run(worker, transfer);
    ASSERT_TRUE(pulled.ok()) << pulled.message();
    if (!sparse) return;
    transfer.rows = nullptr;
    transfer.recv = whole.data();
    ASSERT_TRUE(cluster.Run(worker, transfer).ok());
    for (int32_t row = 0; row < kRows; ++row) {
      const bool wanted = std::find(rows.begin(), rows.end(), row) != rows.end();
      for (int64_t i = row * kRow; i < (row + 1) * kRow; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(values[at], wanted ? whole[at] : 77.0f) << "row " << row << ", step " << step;
      }
    }
  }

  uint64_t pushed_ = 0;
};

TEST_F(RowsOfUnits, GiveTheValuesOfWholePushesAndLessTraffic) {
  const Weights whole = Train(false);
  const uint64_t bytes = pushed_;
  EXPECT_EQ(bytes, kWorkers * 4 * kRow * kRows * sizeof(float));
  EXPECT_EQ(Train(true), whole);
  uint64_t rows = 0;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    for (int step = 1; step <= 4; ++step) rows += RowsOf(worker, step).size();
  }
  EXPECT_EQ(pushed_, rows * kRow * sizeof(float));
}

TEST_F(RowsOfUnits, ThatDoNotAscendOrDoNotExistAreRefused) {
  const TrainingSettings training{.workers = 1, .units = {{kKey, kRow * kRows, kRow}}};
  Cluster cluster(
      {.workers = 1, .servers = 1, .update = ParameterTraits{.mode = UpdateMode::kSync}});
  ASSERT_TRUE(cluster.ok());
  ASSERT_TRUE(Register(cluster.client(0), training, cluster.optimizer()).ok());
  ASSERT_TRUE(cluster.client(0).BeginStep({.step = 1, .weight = 1}).ok());
  std::vector<float> data(kRow * kRows);
  for (const Rows& rows : {Rows{3, 3}, Rows{4, 3}, Rows{-1}, Rows{500}}) {
    Work* work = nullptr;
    const Status status = cluster.Submit(0,
                                         {.kind = TransferKind::kPull,
                                          .recv = data.data(),
                                          .count = kRow * kRows,
                                          .key = kKey,
                                          .rows = rows.data(),
                                          .row_count = static_cast<int64_t>(rows.size())},
                                         &work);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace engine::zmq_ps
