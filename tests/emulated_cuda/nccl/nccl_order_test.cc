// Order between the streams of a user and transfers, and of transfers among themselves.
#include <mutex>

#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {
namespace {

// What the producer stream writes late is what is sent; what the consumer stream does after
// WaitStream sees the sum. The host waits for nothing in between.
TEST(NcclOrder, ATransferIsBetweenTheWorkBeforeItAndTheWorkAfterIt) {
  OnRanks(2, [](World& world, int rank) {
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

TEST(NcclOrder, TransfersCallBackInTheOrderOfSubmission) {
  OnRanks(3, [](World& world, int rank) {
    struct Ends {
      std::mutex mutex;
      std::vector<const void*> order;
    } ends;
    struct End {
      Ends& all;
    };
    std::vector<End> contexts(60, End{ends});
    std::vector<const void*> expected;
    std::vector<float> data(100);
    std::vector<Work*> works;
    for (End& context : contexts) {
      Transfer transfer = InPlace(data, works.size());
      transfer.count = static_cast<int64_t>(works.size() % 4) * 30;
      works.push_back(MustSubmit(world.rank(rank), transfer));
      works.back()->OnDone(
          [](void* end) {
            Ends& all = static_cast<End*>(end)->all;
            const std::lock_guard lock(all.mutex);
            all.order.push_back(end);
          },
          &context);
      expected.push_back(&context);
    }
    for (Work* work : works) EXPECT_TRUE(work->WaitHost(30000).ok());
    EXPECT_TRUE(Eventually([&] {
      const std::lock_guard lock(ends.mutex);
      return ends.order == expected;
    })) << "rank "
        << rank;
    for (Work* work : works) work->Release();
  });
}

TEST(NcclOrder, TheRootOfABroadcastNeedsNoPlaceToReceive) {
  OnRanks(2, [](World& world, int rank) {
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

}  // namespace
}  // namespace engine::test
