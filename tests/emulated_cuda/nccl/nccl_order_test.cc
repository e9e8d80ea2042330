// Order between the streams of a user and transfers, and of transfers among themselves.
#include <latch>
#include <mutex>
#include <numeric>

#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {
namespace {

// What the producer stream writes late is what is sent; what the consumer stream does after
// WaitStream sees the sum. The host waits for nothing in between.
TEST(NcclOrder, ATransferIsBetweenTheWorkBeforeItAndTheWorkAfterIt) {
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
    TestStream producer(rank), consumer(rank);
    std::vector<float> data(1000, -1), seen(1000, -1);
    std::atomic<bool> gate{false};
    for (uint64_t step = 0; step < 20; ++step) {
      gate = false;
      producer.Hold(&gate);
      producer.Fill(&data, static_cast<float>(step + 1) * (rank == 0 ? 1.0f : 10.0f));
      Transfer transfer = InPlace(data, step);
      transfer.stream = &producer;
      Work* const work = MustSubmit(world.rank(rank), transfer);
      ASSERT_NE(work, nullptr);
      // A transfer that NCCL has not taken yet must be waited for by the host, and it is taken
      // whether its data are ready or not.
      EXPECT_TRUE(work->WaitStream(&consumer).ok());
      consumer.Copy(&seen, &data);
      EXPECT_EQ(work->state(), WorkState::kPending);
      EXPECT_EQ(work->started_ns(), 0) << "its data are not ready";
      gate = true;
      EXPECT_TRUE(consumer.Synchronize(0).ok());
      const std::vector<float> expected(1000, static_cast<float>(step + 1) * 11.0f);
      ASSERT_EQ(seen, expected) << "step " << step;
      EXPECT_TRUE(work->WaitHost(30000).ok());
      EXPECT_GT(work->started_ns(), 0);
      work->Release();
    }
  });
}

// One of no elements moves nothing, but keeps its place.
TEST(NcclOrder, AWorldOfOneCopiesInOrderToo) {
  World world(kNcclPlugin, 1);
  ASSERT_TRUE(world.ok());
  TestStream producer(0), consumer(0);
  for (const size_t count : {0, 64}) {
    std::vector<float> send(count, -1), recv(count, -1), seen;
    std::atomic<bool> gate{false};
    producer.Hold(&gate);
    producer.Fill(&send, 7);
    Work* const work = MustSubmit(world.rank(0), {.send = send.data(),
                                                  .recv = recv.data(),
                                                  .count = static_cast<int64_t>(count),
                                                  .stream = &producer});
    ASSERT_NE(work, nullptr);
    EXPECT_TRUE(work->WaitStream(&consumer).ok());
    consumer.Copy(&seen, &recv);
    EXPECT_EQ(work->WaitHost(1).code(), StatusCode::kTimeout) << "its data are not ready";
    gate = true;
    EXPECT_TRUE(consumer.Synchronize(0).ok());
    EXPECT_EQ(seen, std::vector<float>(count, 7));
    EXPECT_TRUE(work->WaitHost(30000).ok());
    work->Release();
  }
}

TEST(NcclOrder, TransfersEndAndCallBackInTheOrderOfSubmission) {
  constexpr size_t kCount = 60;
  struct Ends {
    std::mutex mutex;
    std::vector<size_t> order;
  };
  struct End {
    Ends* ends = nullptr;
    size_t number = 0;
  };
  World world(kNcclPlugin, 3);
  ASSERT_TRUE(world.ok());
  RunRanks(3, [&](int rank) {
    Ends ends;
    std::vector<End> contexts(kCount);
    std::vector<float> data(100);
    std::vector<Work*> works;
    for (size_t i = 0; i < kCount; ++i) {
      contexts[i] = {&ends, i};
      Transfer transfer = InPlace(data, i);
      transfer.count = static_cast<int64_t>(i % 4) * 30;
      works.push_back(MustSubmit(world.rank(rank), transfer));
      works.back()->OnDone(
          [](void* context) {
            const End& end = *static_cast<End*>(context);
            const std::lock_guard lock(end.ends->mutex);
            end.ends->order.push_back(end.number);
          },
          &contexts[i]);
    }
    for (Work* work : works) EXPECT_TRUE(work->WaitHost(30000).ok());
    ASSERT_TRUE(Eventually([&] {
      const std::lock_guard lock(ends.mutex);
      return ends.order.size() == kCount;
    }));
    for (Work* work : works) work->Release();
    std::vector<size_t> expected(kCount);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(ends.order, expected) << "rank " << rank;
  });
}

TEST(NcclOrder, TheRootOfABroadcastNeedsNoPlaceToReceive) {
  World world(kNcclPlugin, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
    std::vector<float> data(10, rank == 1 ? 5.0f : 0.0f);
    const Status status =
        SubmitAndWait(world.rank(rank), {.kind = TransferKind::kBroadcast,
                                         .root = 1,
                                         .send = rank == 1 ? data.data() : nullptr,
                                         .recv = rank == 1 ? nullptr : data.data(),
                                         .count = 10});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(data, std::vector<float>(10, 5.0f));
  });
}

// As the core makes one for ops that see all ranks.
TEST(NcclOrder, ASecondCommunicatorOfTheSameRanksIsIndependent) {
  const auto plugin = PluginUnderTest::Load(kNcclPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto hosts = MakeMemoryHosts(2);
  RunRanks(2, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    auto first = plugin->Create<Communicator>(*hosts[i]);
    ASSERT_TRUE(first.ok()) << first.status().message();
    auto second = plugin->Create<Communicator>(*hosts[i]);
    ASSERT_TRUE(second.ok()) << second.status().message();
    // In another order on each rank: they share nothing.
    Communicator* const order[2] = {first->get(), second->get()};
    std::vector<float> data[2] = {std::vector<float>(50, 1), std::vector<float>(70, 2)};
    Work* works[2] = {};
    for (const size_t n : {i, 1 - i}) {
      works[n] = MustSubmit(*order[n], InPlace(data[n], 0));
    }
    for (const size_t n : {0, 1}) {
      EXPECT_TRUE(works[n]->WaitHost(30000).ok());
      works[n]->Release();
    }
    EXPECT_EQ(data[0], std::vector<float>(50, 2));
    EXPECT_EQ(data[1], std::vector<float>(70, 4));
    second->reset();
    const Status status = SubmitAndWait(**first, InPlace(data[0], 1));
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

}  // namespace
}  // namespace engine::test
