#include "kit/rendezvous.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/memory_host.h"

namespace engine::kit {
namespace {

// What rank `rank` gets when those in `present` meet.
std::vector<Result<std::vector<std::string>>> Meet(
    const std::vector<std::unique_ptr<test::MemoryHost>>& hosts, const std::vector<int>& present) {
  std::vector<Result<std::vector<std::string>>> results(hosts.size(), Status());
  std::vector<std::thread> threads;
  for (const int rank : present) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      Rendezvous rendezvous(*hosts[i]);
      const Status begun = rendezvous.Begin();
      EXPECT_TRUE(begun.ok()) << begun.message();
      results[i] = rendezvous.Exchange("value " + std::to_string(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(Rendezvous, AllGetTheValuesOfAllAgainAndAgain) {
  const auto hosts = test::MakeMemoryHosts(3);
  for (int communicator = 0; communicator < 2; ++communicator) {
    for (const auto& result : Meet(hosts, {0, 1, 2})) {
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_EQ(*result, (std::vector<std::string>{"value 0", "value 1", "value 2"}));
    }
  }
}

TEST(Rendezvous, AsksTheStoreFewTimes) {
  const auto hosts = test::MakeMemoryHosts(20);
  std::vector<int> all(20);
  std::iota(all.begin(), all.end(), 0);
  ASSERT_TRUE(Meet(hosts, all)[7].ok());
  EXPECT_LE(hosts[7]->TakeAsked(), 2);
}

TEST(Rendezvous, EveryRankNamesTheMissingOnes) {
  const auto results = Meet(test::MakeMemoryHosts(4, {}, 200), {0, 3});
  for (const int rank : {0, 3}) {
    const Status& status = results[static_cast<size_t>(rank)].status();
    EXPECT_EQ(status.code(), StatusCode::kRendezvous);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_STREQ(status.message(),
                 "ranks 1, 2 of 4 did not appear within 200 ms: check that every rank was started "
                 "and runs the same plugins");
  }
}

TEST(Rendezvous, TheFirstRankIsNamedWhenOnlyItIsMissing) {
  const Status status = Meet(test::MakeMemoryHosts(3, {}, 100), {1, 2})[2].status();
  EXPECT_EQ(status.rank(), 0);
  EXPECT_STREQ(status.message(),
               "rank 0 of 3 did not appear within 100 ms: check that every rank was started and "
               "runs the same plugins");
}

TEST(GatherValues, AFailureEndsTheWait) {
  const auto hosts = test::MakeMemoryHosts(2);
  Failure failure;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    failure.Abort(Status::Error(StatusCode::kAborted, "stop"));
  });
  const Members members = Members::All(hosts[0]->rank_info(), "0");
  const auto begin = Clock::now();
  const auto values = GatherValues(*hosts[0], members, "0/x", DeadlineIn(20000), &failure);
  other.join();
  EXPECT_STREQ(values.status().message(), "stop");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST(GatherValues, KeepsBytesOfAnyKind) {
  const Values values{"", "a 3", std::nullopt, std::string("\0-9 ", 4)};
  Values back(values.size());
  ASSERT_TRUE(internal::DecodeValues(internal::EncodeValues(values), &back));
  EXPECT_EQ(back, values);
  Values fewer(3), more(5);
  EXPECT_FALSE(internal::DecodeValues(internal::EncodeValues(values), &fewer));
  EXPECT_FALSE(internal::DecodeValues(internal::EncodeValues(values), &more));
  EXPECT_FALSE(internal::DecodeValues("9 abc", &fewer));
}

}  // namespace
}  // namespace engine::kit
