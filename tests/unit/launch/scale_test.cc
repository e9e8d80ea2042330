// 512 ranks start as threads of one process: what they say to the store, and the descriptors that
// they need, grow with their number, and no faster. The counts are printed; docs/launch.md computes
// larger runs from them.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>

#include "app/launch/agree.h"
#include "app/launch/endpoint.h"
#include "core/plugin/plugin_host.h"
#include "kit/rendezvous.h"
#include "tests/support/expect_status.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

constexpr size_t kAddressBytes = 120;  // of a rank, as tcp publishes it
constexpr int kComparisons = 4;        // as in a run: plugins, model, plan, layout

int64_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// What a rank does before its first step, without the work. Rank 0 counts descriptors while all
// ranks are there.
Status StartUp(const RankInfo& info, SocketRank& rank, int64_t* open) {
  ENGINE_RETURN_IF_ERROR(rank.Join());
  const std::atomic<int> stop{0};
  base::RankContext context{info, rank.client, rank.abort, stop};
  context.info.rendezvous_timeout_ms = kLongMs;
  for (int i = 0; i < kComparisons; ++i) {
    const std::string what = "digest " + std::to_string(i);
    ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(context, what, "0123456789abcdef"));
  }
  plugin::PluginHost host("scale", context, nullptr, nullptr);
  const std::string own(kAddressBytes, static_cast<char>('a' + info.rank % 26));
  for (const std::string& value : {own, std::string()}) {  // an address book; a barrier
    kit::Rendezvous rendezvous(host);
    if (info.rank == 0) *open = OpenDescriptors();
    ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
    ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous.Exchange(value));
    EXPECT_EQ(all.size(), static_cast<size_t>(info.world_size));
    EXPECT_EQ(all[info.rank], value);
  }
  ENGINE_RETURN_IF_ERROR(launch::MeetRanks(context, kLongMs));
  rank.client.Leave({});
  return {};
}

// Rank 0 over a socket of its own, the others through a listener, all at once.
StoreServer::Traffic TrafficOf(int ranks) {
  const int64_t before = OpenDescriptors();
  int64_t open = 0;
  const Endpoint endpoint = ValueOf(ParseEndpoint("unix:engine-scale-" + std::to_string(getpid())));
  SocketRun run(ranks);
  run.supervisor().server().Listen({ValueOf(ListenAt(endpoint))});
  kit::UniqueFd first = run.Connect();
  run.Start();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      base::AbortSignal cancel;
      kit::UniqueFd socket = rank == 0
                                 ? std::move(first)
                                 : ValueOf(ConnectTo(endpoint, base::DeadlineIn(kLongMs), cancel));
      SocketRank member(std::move(socket), rank, ranks);
      const Status status = StartUp({.rank = rank, .world_size = ranks}, member, &open);
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  Supervisor& supervisor = run.Finish();
  EXPECT_TRUE(supervisor.AllGone());
  EXPECT_TRUE(supervisor.Outcome().status.ok());
  // A rank has a connection and what wakes its reader, the store the other end and its listener.
  // A rank: two ends of its connection, and what wakes its reader. The store: its listener and epoll.
  EXPECT_GE(open - before, 3 * ranks);
  EXPECT_LE(open - before, 3 * ranks + 2);
  EXPECT_EQ(OpenDescriptors(), before);
  const StoreServer::Traffic traffic = supervisor.server().traffic();
  std::printf("%d ranks: %lld messages in, %lld out; %lld bytes in, %lld out; %lld reads\n", ranks,
              static_cast<long long>(traffic.messages_in),
              static_cast<long long>(traffic.messages_out),
              static_cast<long long>(traffic.bytes_in), static_cast<long long>(traffic.bytes_out),
              static_cast<long long>(traffic.reads));
  return traffic;
}

TEST(Scale, StartOf512Ranks) {
  constexpr int kFew = 64, kMany = 512;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_max, 4u * kMany) << "this test needs more descriptors (ulimit -Hn)";
  const auto begin = std::chrono::steady_clock::now();
  const StoreServer::Traffic few = TrafficOf(kFew), many = TrafficOf(kMany);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));

  // Linear: so many for each rank, whatever their number.
  constexpr int kMessages = 24;  // of a rank, with rank 0's share
  EXPECT_LE(many.messages_in, kMessages * kMany);
  EXPECT_LE(many.messages_out, kMessages * kMany);
  EXPECT_NEAR(static_cast<double>(many.messages_in) / kMany,
              static_cast<double>(few.messages_in) / kFew, 1.0);
  EXPECT_LE(many.bytes_in, few.bytes_in * kMany / kFew * 2);
  // A read takes what is there and finds nothing more: no connection is read for another's sake.
  EXPECT_LE(many.reads, 3 * many.messages_in);
  // Each rank gets the addresses of all: N^2 of them, and little else.
  const int64_t book = int64_t{kMany} * kMany * static_cast<int64_t>(kAddressBytes + 8);
  EXPECT_LE(many.bytes_out, book + int64_t{kMany} * kMessages * 64);
}

}  // namespace
}  // namespace engine::launch
