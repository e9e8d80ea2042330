// What Host::Query(InnerPlugins::kId) makes, for ranks that are threads.
#include "app/plugins/inner_plugins.h"

#include <gmock/gmock.h>

#include <thread>

#include "app/plugins/catalog.h"
#include "app/plugins/option_value.h"
#include "tests/support/expect_status.h"
#include "tests/support/memory_store.h"

namespace engine::plugins {
namespace {

using plugin::PluginChoice;

constexpr int32_t kRanks = 4;
const Status kReason = Status::Error(StatusCode::kStorage, "the disk is full").WithRank(1);

PluginChoice Chosen(const std::string& name) {
  const PluginFile file = ReadPluginFile(ENGINE_TEST_PLUGIN_DIR "/libengine_" + name + ".so");
  EXPECT_TRUE(file.problem.ok()) << file.problem.message();
  PluginChoice choice{.entry = file};
  for (const OptionSpec* spec : OptionsOf(file.options, "")) {
    choice.options.push_back(DefaultOf(*spec));
  }
  return choice;
}

// The outer plugin's Host on one rank.
struct OneRank {
  OneRank(int32_t rank, const std::shared_ptr<test::MemoryTable>& table, const PluginChoice& outer)
      : store(table, abort),
        context{.info = {.rank = rank,
                         .world_size = kRanks,
                         .local_rank = rank,
                         .local_world_size = kRanks,
                         .rendezvous_timeout_ms = 300},
                .store = store,
                .abort = abort,
                .stop_requested = stop},
        host("outer", context, nullptr, nullptr) {
    host.Offer(outer);
  }
  Status Make(const InnerPlugin& inner, const std::vector<int32_t>& ranks) {
    Communicator* communicator = nullptr;
    const Status status = this->inner().CreateCommunicator(inner, ranks, &communicator);
    made.reset(communicator);
    return status;
  }
  Status Sum(float* value, int64_t timeout_ms = 20000) {
    Work* work = nullptr;
    ENGINE_RETURN_IF_ERROR(
        made->Submit({.send = value, .recv = value, .count = 1, .timeout_ms = timeout_ms}, &work));
    const Status status = work->WaitHost(20000);
    work->Release();
    return status;
  }
  InnerPlugins& inner() { return *Query<InnerPlugins>(host); }

  base::AbortSignal abort;
  test::MemoryStore store;
  std::atomic<int> stop{0};
  base::RankContext context;
  plugin::PluginHost host;
  std::unique_ptr<Communicator> made;
};

class InnerPluginsTest : public ::testing::Test {
 protected:
  InnerPluginsTest() : outer_{.entry = {.make_inner = MakeInner, .name = "outer"}} {
    for (const char* name : {"tcp", "shm", "fifo_sched"}) outer_.inner.push_back(Chosen(name));
    const auto table = std::make_shared<test::MemoryTable>();
    for (int32_t r = 0; r < kRanks; ++r) {
      ranks_.push_back(std::make_unique<OneRank>(r, table, outer_));
    }
  }
  template <typename Body>
  void OnRanks(const std::vector<int32_t>& ranks, Body body) {
    std::vector<std::thread> threads;
    for (const int32_t r : ranks) {
      threads.emplace_back([&, r] { body(r, *ranks_[static_cast<size_t>(r)]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void MakeOdd() {
    OnRanks({1, 3}, [](int32_t, OneRank& rank) {
      EXPECT_THAT(rank.Make({.plugin = "tcp", .label = "odd"}, {1, 3}), IsOk());
    });
  }

  PluginChoice outer_;
  std::vector<std::unique_ptr<OneRank>> ranks_;
};

TEST_F(InnerPluginsTest, GroupsOfOneLabelAndAllRanksHaveNothingInCommon) {
  for (const char* plugin : {"tcp", "shm"}) {
    OnRanks({0, 1, 2, 3}, [&](int32_t r, OneRank& rank) {
      const InnerPlugin inner{.plugin = plugin, .label = "parity"};
      float sum = static_cast<float>(r);
      ASSERT_THAT(rank.Make(inner, {r % 2, r % 2 + 2}), IsOk());
      EXPECT_THAT(rank.Sum(&sum), IsOk());
      EXPECT_EQ(sum, r % 2 == 0 ? 2 : 4);
      ASSERT_THAT(rank.Make(inner, {0, 1, 2, 3}), IsOk());
      EXPECT_THAT(rank.Sum(&(sum = static_cast<float>(r))), IsOk());
      EXPECT_EQ(sum, 6);
    });
  }
}

TEST_F(InnerPluginsTest, AGroupNamesRanksOfTheRun) {
  const Status alone = ranks_[1]->Make({.plugin = "tcp", .label = "x"}, {1, 3});
  EXPECT_THAT(alone, FailsWith(StatusCode::kRendezvous, HasSubstr("rank 3 of 4")));
  EXPECT_EQ(alone.rank(), 3);
  MakeOdd();
  ranks_[3]->made.reset();
  float value = 1;
  const Status lost = ranks_[1]->Sum(&value);
  EXPECT_EQ(lost.rank(), 3) << lost.message();
  EXPECT_THAT(lost.message(), HasSubstr("rank 3, which is rank 1 of 'outer/odd@1,3': "));
}

TEST_F(InnerPluginsTest, TheEndOfTheRunReachesAGroupAndComesBackAsItWas) {
  MakeOdd();
  std::thread ends([&] { ranks_[1]->abort.Raise(kReason); });
  float value = 1;
  const Status status = ranks_[1]->Sum(&value);
  ends.join();
  EXPECT_THAT(status, FailsWith(kReason.code(), ::testing::StrEq(kReason.message())));
  EXPECT_EQ(status.rank(), 1) << "of the run, and not of the group";
}

TEST_F(InnerPluginsTest, OptionsThatAreAskedForAreChecked) {
  OneRank& rank = *ranks_[0];
  const auto refusal = [&](const char* name, OptionType type, int64_t value) {
    const OptionValue option{.name = name, .type = type, .integer = value};
    return rank.Make({.plugin = "tcp", .options = {&option, 1}, .label = "x"}, {});
  };
  EXPECT_THAT(
      refusal("io_threads", OptionType::kInt, 17),
      FailsWith(StatusCode::kConfig, HasSubstr("plugin 'tcp', io_threads: 17 is outside 1 .. 16")));
  EXPECT_THAT(refusal("io_threads", OptionType::kBool, 1),
              FailsWith(StatusCode::kConfig, HasSubstr("it is of type int, not bool")));
  EXPECT_THAT(refusal("io_thread", OptionType::kInt, 1),
              FailsWith(StatusCode::kConfig, HasSubstr("has no option 'io_thread'")));
}

TEST_F(InnerPluginsTest, WhatIsNoPluginOrGroupIsRefused) {
  OneRank& rank = *ranks_[1];
  const InnerPlugin tcp{.plugin = "tcp", .label = "x"};
  for (const std::vector<int32_t>& ranks :
       {std::vector<int32_t>{3, 1}, {1, 1}, {-1, 1}, {1, 4}, {0, 2}}) {
    EXPECT_EQ(rank.Make(tcp, ranks).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(rank.Make({.plugin = "gloo", .label = "x"}, {1}).code(), StatusCode::kPlugin);
  EXPECT_EQ(rank.Make({.plugin = "fifo_sched", .label = "x"}, {1}).code(), StatusCode::kPlugin);
  EXPECT_EQ(rank.Make({.plugin = "tcp", .label = "a/b"}, {1}).code(), StatusCode::kPlugin);
  Scheduler* scheduler = nullptr;
  EXPECT_EQ(rank.inner().CreateScheduler(tcp, &scheduler).code(), StatusCode::kPlugin);
}

}  // namespace
}  // namespace engine::plugins
