// What hier and by_size promise beyond the contract of communicators.

#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/matchers.h"
#include "tools/conform/communicator/communicator_rig.h"

namespace engine::test {
namespace {

using conform::Must;
using conform::RunRanks;
using conform::SubmitAndWait;
using conform::TransferBuffers;
using Overrides = conform::OptionValues::Overrides;

conform::PluginUnderTest Around(const std::string& name, const std::vector<std::string>& inner) {
  auto plugin = Must(conform::PluginUnderTest::Load(PluginPath(name)));
  for (const std::string& one : inner) {
    plugin.AddInner(Must(conform::PluginUnderTest::Load(PluginPath(one))));
  }
  return plugin;
}

// The communicators of a group whose ranks are threads.
class Ranks {
 public:
  Ranks(const conform::PluginUnderTest& plugin, int size, const Overrides& options)
      : hosts_(conform::MakeMemoryHosts(size)), made_(static_cast<size_t>(size)) {
    RunRanks(size, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      made_[r] = Must(plugin.Create<Communicator>(*hosts_[r], options));
    });
  }
  std::unique_ptr<Communicator>& operator[](int rank) { return made_[static_cast<size_t>(rank)]; }

 private:
  const std::vector<std::unique_ptr<conform::MemoryHost>> hosts_;
  std::vector<std::unique_ptr<Communicator>> made_;
};

std::vector<Status> Refusals(const std::vector<std::string>& tables) {
  const auto size = static_cast<int>(tables.size());
  return conform::World::CreationErrors(Around("by_size", {"tcp"}), size, size, [&](int rank) {
    return Overrides{{"table", tables[static_cast<size_t>(rank)]}};
  });
}

TEST(BySize, TablesThatDifferAreRefusedOnEveryRankByTheirRow) {
  const std::string table = "barrier any tcp; all_reduce 64KiB tcp";
  const auto errors = Refusals({table, table, "barrier  any tcp;all_reduce 1MiB tcp"});
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_EQ(errors[rank].code(), StatusCode::kConfig);
    EXPECT_EQ(errors[rank].rank(), rank < 2 ? 2 : 0);
    EXPECT_THAT(errors[rank].message(),
                AllOf(HasSubstr("row 2 is"), HasSubstr("'all_reduce 64KiB tcp'"),
                      HasSubstr("'all_reduce 1MiB tcp'")));
  }
}

TEST(BySize, ARowThatIsNoneIsQuoted) {
  for (const char* row :
       {"all_reduce 64KB tcp", "sum 4 tcp", "any any", "any -1 tcp", "any 4 tcp tcp",
        "any 1234567890123456 tcp", "any KiB tcp", "any 99999999999GiB tcp"}) {
    const Status error = Refusals({std::string("barrier any tcp;") + row})[0];
    EXPECT_EQ(error.code(), StatusCode::kConfig);
    EXPECT_THAT(error.message(), HasSubstr("row 2 '" + std::string(row) + "' is not 'OPERATION"));
  }
  EXPECT_THAT(Refusals({"any 1KiB shm"})[0].message(),
              HasSubstr("row 'any 1KiB shm': 'shm' is not the value of by_size.default"));
}

// Of one rank, what null gets is not copied.
TEST(BySize, TheFirstRowThatFitsCounts) {
  Ranks ranks(Around("by_size", {"null", "tcp"}), 2,
              {{"default", "null"},
               {"second", "tcp"},
               {"table", "all_reduce 1KiB tcp; all_reduce 512 null; all_gather 1KiB tcp"}});
  RunRanks(2, [&](int rank) {
    uint64_t sequence = 0;
    const auto moves = [&](TransferKind kind, int64_t count) {
      TransferBuffers buffers({.kind = kind, .count = count}, rank, 2);
      buffers.Fill();
      EXPECT_TRUE(SubmitAndWait(*ranks[rank], buffers.MakeTransfer(sequence++)).ok());
      return static_cast<bool>(buffers.Check());
    };
    EXPECT_TRUE(moves(TransferKind::kAllReduce, 100));
    EXPECT_TRUE(moves(TransferKind::kAllReduce, 256));
    EXPECT_FALSE(moves(TransferKind::kAllReduce, 257));
    EXPECT_TRUE(moves(TransferKind::kAllGather, 128)) << "bytes are those of all ranks";
    EXPECT_FALSE(moves(TransferKind::kAllGather, 129));
  });
}

TEST(BySize, AFailureOfOneFailsAll) {
  Ranks ranks(Around("by_size", {"shm", "tcp"}), 2,
              {{"second", "shm"}, {"table", "all_reduce 64 shm"}});
  TransferBuffers small({.count = 1}, 0, 2), large({.count = 100}, 0, 2);
  Work* const pending = conform::MustSubmit(*ranks[0], small.MakeTransfer(0));
  EXPECT_EQ(SubmitAndWait(*ranks[0], large.MakeTransfer(1, 0, 200)).code(), StatusCode::kTimeout);
  const Status reason = pending->WaitHost(conform::kWaitMs);
  EXPECT_EQ(reason.code(), StatusCode::kTimeout);
  EXPECT_EQ(std::string(reason.message()).rfind("tcp: ", 0), 0u) << reason.message();
  pending->Release();
  EXPECT_EQ(conform::ExpectRefused(*ranks[0], small.MakeTransfer(2)).code(), StatusCode::kTimeout);
}

// Rank 3 is one of another host for ranks 0 and 1, and has another number inside.
TEST(Hier, AFailureNamesTheRankOfTheRunAndTheTransfer) {
  Ranks ranks(Around("hier", {"shm", "tcp"}), 4, {{"ranks_per_host", "2"}});
  RunRanks(4, [&](int rank) {
    if (rank == 3) return ranks[rank].reset();
    TransferBuffers buffers({.count = 100000}, rank, 4);
    Transfer transfer = buffers.MakeTransfer(7);
    transfer.bucket = 5;
    const Status status = SubmitAndWait(*ranks[rank], transfer);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_EQ(status.rank(), 3) << status.message();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("all-reduce of 400 kB (bucket 5, sequence 7)"),
                                        HasSubstr("of 'hier/")));
  });
}

}  // namespace
}  // namespace engine::test
