// Fewer servers than ranks, and what a rank learns when another one, with or without a server,
// goes.
#include <gmock/gmock.h>

#include "cluster.h"
#include "communicator.h"
#include "tests/support/memory_host.h"

namespace engine::zmq_ps {
namespace {

using Communicators = std::vector<std::unique_ptr<ZmqPsCommunicator>>;

class Servers : public ::testing::Test {
 protected:
  Communicators Create(uint32_t ranks, const CommunicatorSettings& settings) {
    hosts_ = test::MakeMemoryHosts(static_cast<int>(ranks));
    Communicators communicators(ranks);
    RunWorkers(ranks, [&](uint32_t rank) {
      auto created = ZmqPsCommunicator::Create(*hosts_[rank], settings);
      EXPECT_TRUE(created.ok()) << created.status().message();
      if (created.ok()) communicators[rank] = std::move(*created);
    });
    return communicators;
  }

  static Status Run(Communicator& communicator, const Transfer& transfer) {
    Work* work = nullptr;
    ENGINE_RETURN_IF_ERROR(communicator.Submit(transfer, &work));
    const Status status = work->WaitHost(transfer.timeout_ms + 5000);
    work->Release();
    return status;
  }

  std::vector<std::unique_ptr<test::MemoryHost>> hosts_;
};

TEST_F(Servers, AnyNumberOfRanksMayHostOne) {
  constexpr uint32_t kRanks = 3;
  for (const int64_t servers : {1, 2, 3}) {
    for (const bool encrypt : {false, true}) {
      SCOPED_TRACE(std::to_string(servers) + (encrypt ? " servers, encrypted" : " servers"));
      const Communicators communicators =
          Create(kRanks, {.rendezvous = {.servers = servers, .encrypt = encrypt}});
      RunWorkers(kRanks, [&](uint32_t rank) {
        ASSERT_NE(communicators[rank], nullptr);
        std::vector<float> data(300000, static_cast<float>(rank + 1));
        const Status status =
            Run(*communicators[rank],
                {.send = data.data(), .recv = data.data(), .count = 300000, .key = 9});
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_THAT(data, ::testing::Each(6.0f));
      });
    }
  }
}

// Matched by position, in another sequence of the two orders on each rank.
TEST_F(Servers, TransfersOfTheSecondOrderWaitForNoneOfTheFirst) {
  const Communicators communicators = Create(2, {.ordered = true});
  RunWorkers(2, [&](uint32_t rank) {
    ASSERT_NE(communicators[rank], nullptr);
    Communicator& first = *communicators[rank];
    auto* const second = static_cast<Communicator*>(first.Query(kSecondOrderId));
    ASSERT_NE(second, nullptr);
    float values[2] = {1, 10};
    const Transfer transfers[2] = {{.send = &values[0], .recv = &values[0], .count = 1, .key = 5},
                                   {.send = &values[1], .recv = &values[1], .count = 1, .key = 6}};
    Work* works[2] = {};
    for (const uint32_t i : {rank, 1 - rank}) {
      Communicator& communicator = i == 0 ? first : *second;
      ASSERT_TRUE(communicator.Submit(transfers[i], &works[i]).ok());
    }
    for (Work* const work : works) {
      const Status status = work->WaitHost(20000);
      EXPECT_TRUE(status.ok()) << status.message();
      work->Release();
    }
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 20);
  });
}

// Rank 2 hosts no server: only rank 0's can tell that it is gone.
TEST_F(Servers, ARankWithoutServerThatGoesIsNamed) {
  constexpr uint32_t kRanks = 3;
  Communicators communicators = Create(kRanks, {.rendezvous = {.servers = 1}});
  RunWorkers(kRanks, [&](uint32_t rank) {
    ASSERT_NE(communicators[rank], nullptr);
    if (rank == 2) {
      communicators[rank].reset();
      return;
    }
    std::vector<float> data(1000);
    const Status status = Run(*communicators[rank],
                              {.send = data.data(), .recv = data.data(), .count = 1000, .key = 9});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 2) << status.message();
  });
}

}  // namespace
}  // namespace engine::zmq_ps
