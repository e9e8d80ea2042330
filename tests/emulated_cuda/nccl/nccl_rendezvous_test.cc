// How ranks meet, and how they hear of each other.
#include <gmock/gmock.h>

#include <tuple>

#include "engine/ext/sub_groups.h"
#include "tests/emulated_cuda/nccl/nccl_rig.h"

namespace engine::test {
namespace {

// Each says something once and hears all from one of them: at the start, in a split, in a liveness
// check.
TEST(NcclRendezvous, AsksTheStoreLessOftenThanThereArePairsOfRanks) {
  constexpr int kRanks = 16, kPairs = kRanks * kRanks;
  World world(kNcclPlugin, kRanks);
  const auto asked = [&] {
    int sum = 0;
    for (int rank = 0; rank < kRanks; ++rank) sum += world.host(rank).TakeAsked();
    return sum;
  };
  EXPECT_LT(asked(), kPairs / 2);
  RunRanks(kRanks, [&](int rank) {
    Communicator* child = nullptr;
    auto* const groups = Query<SubGroups>(world.rank(rank));
    EXPECT_TRUE(groups->Split(0, 0, &child).ok());
    delete child;
  });
  EXPECT_LT(asked(), kPairs / 2);
  RunRanks(kRanks, [&](int rank) {
    if (rank == 7) return;
    std::vector<float> data(10);
    const Status status = SubmitAndWait(world.rank(rank), InPlace(data, 0, 300));
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
    EXPECT_EQ(status.rank(), 7) << status.message();
  });
  EXPECT_LT(asked(), kPairs);
}

TEST(NcclRendezvous, ConnectsByAsManyIdsAsTheWorldNeeds) {
  for (const auto& [library, count] :
       {std::pair("libnccl.so.2", "3"), std::pair("libbare_nccl.so.2", "1")}) {
    World world(kNcclPlugin, 5, {{"library", library}, {"ranks_per_id", "2"}});
    RunRanks(5, [&](int rank) {
      std::vector<float> data(10, 1);
      EXPECT_TRUE(SubmitAndWait(world.rank(rank), InPlace(data, 0)).ok());
      EXPECT_EQ(data, std::vector<float>(10, 5));
    });
    EXPECT_EQ(world.host(4).log().front(), std::string("5 ranks, ids of NCCL: ").append(count));
  }
}

TEST(NcclRendezvous, TellsNcclTheCtaPolicyOrSaysThatItIsTooOld) {
  const std::tuple<const char*, const char*, StatusCode> cases[] = {
      {"policy=1", "efficiency", StatusCode::kOk},
      {"policy=2", "zero", StatusCode::kOk},
      {"version=22605", "efficiency", StatusCode::kPlugin},
      {"version=22707", "zero", StatusCode::kPlugin}};
  for (const auto& [faults, policy, code] : cases) {
    const Fault fault(faults);
    SingleHost host;
    const Status status = ErrorOfCreation(host, {{"cta_policy", policy}});
    EXPECT_EQ(status.code(), code) << faults << ": " << status.message();
  }
}

}  // namespace
}  // namespace engine::test
