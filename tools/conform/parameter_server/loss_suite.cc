// Ranks that are slow, silent, gone or back again, and servers that end.
#include <chrono>
#include <thread>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/parameter_server/members.h"
#include "tools/conform/parameter_server/served_fixture.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/ext/parameter_server.h";

using Clock = std::chrono::steady_clock;

const Status kDiskFull = Status::Error(StatusCode::kStorage, "the disk is full");

Status PushStep(Members& members, int rank, const std::vector<TestBucket>& buckets, uint64_t step) {
  ENGINE_RETURN_IF_ERROR(members.Begin(rank, step));
  for (const TestBucket& bucket : buckets) {
    ENGINE_RETURN_IF_ERROR(members.Push(rank, bucket, bucket.Filled(1)));
  }
  return {};
}

// One step of one rank over all buckets, waited for.
Status StepOf(Members& members, int rank, const std::vector<TestBucket>& buckets, uint64_t step) {
  ENGINE_RETURN_IF_ERROR(PushStep(members, rank, buckets, step));
  std::vector<float> value;
  for (const TestBucket& bucket : buckets) {
    ENGINE_RETURN_IF_ERROR(members.Pull(rank, bucket, &value));
  }
  return {};
}

// Several small buckets, so that every server has some.
std::vector<TestBucket> ManyBuckets() {
  std::vector<TestBucket> buckets;
  for (uint64_t key = 1; key <= 16; ++key) buckets.push_back(PlainBucket(key, 1000));
  return buckets;
}

using ServedBounded = Served<kBoundedMode>;

TEST_P(ServedBounded, AFastRankIsHeldAtTheStalenessAndNotBefore) {
  MUST(
      "kBounded: a pull of step t waits until every rank that is there has pushed step t - "
      "staleness, and no longer.");
  for (const uint64_t before : {uint64_t{0}, uint64_t{70}}) {  // the steps of an earlier run
    Members members(GetParam(), 3);
    const auto buckets = members.Start(SmallBuckets());
    const auto staleness = static_cast<uint64_t>(members.traits().staleness);
    for (uint64_t step = 1; step <= staleness; ++step) {
      ASSERT_OK(StepOf(members, 0, buckets, before + step));
    }
    uint64_t fast = staleness;
    for (uint64_t slow = 1; slow <= 3; ++slow) {
      ++fast;
      ASSERT_OK(PushStep(members, 0, buckets, before + fast));
      std::vector<float> values[2];
      Work* const pulls[] = {members.SubmitPull(0, buckets[0], &values[0]),
                             members.SubmitPull(0, buckets[1], &values[1])};
      const auto pending = [&](int i) { return pulls[i]->state() == WorkState::kPending; };
      ASSERT_OK(PushStep(members, 2, buckets, before + slow));
      EXPECT_TRUE(pending(0) && pending(1)) << "rank 1 has not begun step " << slow;
      ASSERT_OK(members.Begin(1, before + slow));
      ASSERT_OK(members.Push(1, buckets[1], buckets[1].Filled(1)));
      EXPECT_TRUE(pending(0)) << "rank 1 has not pushed this bucket";
      ASSERT_OK(members.Push(1, buckets[0], buckets[0].Filled(1)));
      ASSERT_OK(Finish(pulls[0]));
      ASSERT_OK(Finish(pulls[1]));
    }
  }
}

using ServedAsyncLoss = Served<kAsyncModes, 1>;

TEST_P(ServedAsyncLoss, ARankThatLeavesDoesNotHoldTheOthers) {
  MUST("kBounded, kAsync: a rank that has left holds nobody.");
  Members members(GetParam(), 3);
  const auto buckets = members.Start(SmallBuckets());
  const auto staleness = static_cast<uint64_t>(members.traits().staleness);
  for (uint64_t step = 1; step <= staleness; ++step) ASSERT_OK(StepOf(members, 0, buckets, step));
  ASSERT_OK(PushStep(members, 0, buckets, staleness + 1));
  std::vector<float> value;
  Work* const pull = members.SubmitPull(0, buckets[0], &value);
  ASSERT_OK(StepOf(members, 1, buckets, 1));
  if (mode() == UpdateMode::kBounded) {
    EXPECT_EQ(pull->state(), WorkState::kPending) << "rank 2 has not pushed";
  }
  members.Leave(2);
  ASSERT_OK(Finish(pull));
}

TEST_P(ServedAsyncLoss, OthersGoOnWhenARankLeavesOrGivesUp) {
  MUST(
      "kBounded, kAsync: the others go on when a rank leaves or gives up, with collectives of "
      "those that are left.");
  for (const bool gives_up : {false, true}) {
    SCOPED_TRACE(gives_up ? "gives up" : "leaves");
    Members members(GetParam(), 3);
    const auto buckets = members.Start(SmallBuckets());
    for (int rank = 0; rank < 3; ++rank) ASSERT_OK(StepOf(members, rank, buckets, 1));
    if (gives_up) members.communicator(1).Abort(kDiskFull);
    if (!gives_up) members.Leave(1);
    for (uint64_t step = 2; step <= 8; ++step) {
      for (const int rank : {0, 2}) ASSERT_OK(StepOf(members, rank, buckets, step));
    }
    RunRanks(3, [&](int rank) {
      if (rank == 1) return;
      // A barrier of those that are left.
      const Transfer barrier{.kind = TransferKind::kBarrier, .timeout_ms = kTimeoutMs};
      EXPECT_OK(SubmitAndWait(members.communicator(rank), barrier));
    });
  }
}

// What updates of a gradient of ones make of the bucket.
std::vector<float> Updated(const TestBucket& bucket, int updates) {
  std::vector<float> values = bucket.Values();
  for (int i = 0; i < updates; ++i) {
    for (float& value : values) value -= 0.125f;
  }
  return values;
}

// It left within its step 4: the new process pushes that again, and what had arrived of it is not
// applied twice.
TEST_P(ServedAsyncLoss, AnotherTakesThePlaceOfOneThatLeft) {
  MUST(
      "One that takes the place of a lost rank (RankInfo::incarnation) goes on after LastStep; "
      "what it pushes again is not applied twice.");
  Members members(GetParam(), 2);
  const auto buckets = members.Start(SmallBuckets());
  for (uint64_t step = 1; step <= 3; ++step) {
    for (int rank = 0; rank < 2; ++rank) ASSERT_OK(StepOf(members, rank, buckets, step));
  }
  ASSERT_OK(members.Begin(1, 4));
  ASSERT_OK(members.Push(1, buckets[0], buckets[0].Filled(1)));
  members.Leave(1);
  for (uint64_t step = 4; step <= 8; ++step) ASSERT_OK(StepOf(members, 0, buckets, step));

  members.Rejoin(1);
  ASSERT_OK(members.Register(1, buckets));
  uint64_t last = 0;
  ASSERT_OK(members.client(1).LastStep(kTimeoutMs, &last));
  EXPECT_EQ(last, 3u);
  members.ExpectLoaded(1, buckets[0], -1, Updated(buckets[0], 4 + 8));
  // Rank 0 is not held by steps that it has made long ago.
  for (uint64_t step = 4; step <= 7; ++step) {
    ASSERT_OK(StepOf(members, 1, buckets, step));
    ASSERT_OK(StepOf(members, 0, buckets, step + 5));
  }
  for (const TestBucket& bucket : buckets) {
    for (int rank = 0; rank < 2; ++rank) {
      members.ExpectLoaded(rank, bucket, -1, Updated(bucket, 7 + 12));
    }
  }
}

using ServedAsyncInside = Served<kAsyncModes>;

// It may take parameters with it, as a server is part of it: then the others end and say so.
TEST_P(ServedAsyncInside, WhoEndsBecauseARankLeftNamesIt) {
  SHOULD(
      "A rank that ends because parameters were lost with another one should fail with "
      "kPeerLost and that rank.");
  Members members(GetParam(), 3);
  const auto buckets = members.Start(ManyBuckets());
  for (int rank = 0; rank < 3; ++rank) ASSERT_OK(StepOf(members, rank, buckets, 1));
  members.Leave(1);
  for (const int rank : {0, 2}) {
    const Status status = StepOf(members, rank, buckets, 2);
    if (status.ok()) continue;
    ExpectError(status, StatusCode::kPeerLost, 1);
  }
}

using ServedSyncLoss = Served<kSyncMode>;

TEST_P(ServedSyncLoss, ARankThatLeavesEndsThePullsThatNeedItWithItsName) {
  MUST("kSync: a pull that needs a rank that has left fails with kPeerLost and its rank.");
  Members members(GetParam(), 3);
  const auto buckets = members.Start(SmallBuckets());
  for (int rank = 0; rank < 2; ++rank) ASSERT_OK(PushStep(members, rank, buckets, 1));
  std::vector<float> values[2];
  Work* const pulls[] = {members.SubmitPull(0, buckets[0], &values[0]),
                         members.SubmitPull(1, buckets[1], &values[1])};
  const auto start = Clock::now();
  members.Leave(2);
  for (Work* pull : pulls) ExpectError(Finish(pull), StatusCode::kPeerLost, 2);
  EXPECT_LT(Clock::now() - start, kPromptly);
}

TEST_P(ServedSyncLoss, APullThatTimesOutNamesTheRankThatHasNotPushed) {
  SHOULD("The kTimeout of a pull should name the rank that has not pushed.");
  Members members(GetParam(), 3);
  const auto buckets = members.Start(SmallBuckets());
  for (const int rank : {0, 2}) ASSERT_OK(PushStep(members, rank, buckets, 1));
  std::vector<float> value;
  ExpectError(Finish(members.SubmitPull(0, buckets[0], &value, 300)), StatusCode::kTimeout, 1);
  EXPECT_EQ(members.Push(0, buckets[0], value).code(), StatusCode::kTimeout)
      << "a failed communicator fails every later call";
}

using ServedAbort = Served<kAllModes>;

// Pulls that wait for rank 1, in every mode: in one that does not wait for others, for a push of
// the own rank that never comes.
std::vector<Work*> PullsThatWait(Members& members, const std::vector<TestBucket>& buckets,
                                 std::vector<std::vector<float>>* values) {
  values->resize(buckets.size());
  const ParameterTraits traits = members.traits();
  const bool bounded = traits.mode == UpdateMode::kBounded;
  const uint64_t held = 1 + (bounded ? static_cast<uint64_t>(traits.staleness) : 0);
  const bool waits_for_others = traits.mode != UpdateMode::kAsync;
  for (uint64_t step = 1; step < held; ++step) EXPECT_OK(StepOf(members, 0, buckets, step));
  if (waits_for_others) {
    EXPECT_OK(PushStep(members, 0, buckets, held));
  } else {
    EXPECT_OK(members.Begin(0, held));
  }
  std::vector<Work*> pulls;
  for (size_t i = 0; i < buckets.size(); ++i) {
    pulls.push_back(members.SubmitPull(0, buckets[i], &(*values)[i]));
  }
  return pulls;
}

TEST_P(ServedAbort, EndsWhatIsPendingAndAllThatComesLaterWithTheFirstReason) {
  MUST(
      "After Abort every pending and later push, pull and call of the client fails with the first "
      "reason.");
  Members members(GetParam(), 2);
  const auto buckets = members.Start(SmallBuckets());
  std::vector<std::vector<float>> values;
  const std::vector<Work*> pulls = PullsThatWait(members, buckets, &values);
  for (Work* pull : pulls) EXPECT_EQ(pull->state(), WorkState::kPending);
  const auto start = Clock::now();
  Communicator& communicator = members.communicator(0);
  std::thread([&] {
    communicator.Abort(kDiskFull);
    communicator.Abort(Status::Error(StatusCode::kInternal, "a later reason"));
  }).join();
  const std::vector<float> gradient = buckets[0].Filled(1);
  for (Work* pull : pulls) {
    const Status status = pull->WaitHost(20000);
    EXPECT_STREQ(status.message(), kDiskFull.message());
    EXPECT_EQ(pull->state(), WorkState::kFailed);
    pull->Release();
  }
  uint64_t last = 0;
  for (const Status& later :
       {members.Push(0, buckets[0], gradient), members.Pull(0, buckets[0], &values[0]),
        members.Load(0, buckets[0], -1, &values[0]), members.Store(buckets[0], -1, gradient),
        members.client(0).LastStep(kTimeoutMs, &last)}) {
    EXPECT_STREQ(later.message(), kDiskFull.message());
  }
  EXPECT_LT(Clock::now() - start, kPromptly);
}

TEST_P(ServedAbort, EndsALoadThatWaits) {
  MUST("Abort ends a Load that waits.");
  Members members(GetParam(), 2);
  const TestBucket bucket = PlainBucket(31, 10);
  members.RegisterAll({bucket});
  const auto start = Clock::now();
  std::thread aborts([&] { members.communicator(1).Abort(kDiskFull); });
  std::vector<float> got;
  EXPECT_STREQ(members.Load(1, bucket, -1, &got).message(), kDiskFull.message());
  aborts.join();
  EXPECT_LT(Clock::now() - start, kPromptly);
}

TEST_P(ServedAbort, DestructionEndsWhatIsPending) {
  CONTRACT(MUST, "engine/communicator.h",
           "The destructor ends every pending Work, with kAborted, before it returns.");
  Members members(GetParam(), 2);
  const auto buckets = members.Start(SmallBuckets());
  std::vector<std::vector<float>> values;
  const std::vector<Work*> pulls = PullsThatWait(members, buckets, &values);
  const auto start = Clock::now();
  members.Leave(0);
  for (Work* pull : pulls) {
    EXPECT_EQ(pull->state(), WorkState::kFailed);
    EXPECT_EQ(pull->WaitHost(0).code(), StatusCode::kAborted);
    pull->Release();
  }
  EXPECT_LT(Clock::now() - start, kPromptly);
}

using ServedMembers = Served<kAllModes, 1>;

TEST_P(ServedMembers, ServeReturnsWhenAllRanksHaveLeftAlsoIfNobodyRegistered) {
  MUST("Serve returns when every rank has left.");
  for (const bool registers : {true, false}) {
    Members members(GetParam(), 2);
    if (registers) members.Start(SmallBuckets());
    for (int rank = 0; rank < 2; ++rank) members.Leave(rank);
    for (int index = 0; index < GetParam().servers; ++index) EXPECT_OK(members.Served(index));
  }
}

TEST_P(ServedMembers, AServerMovesNothingElse) {
  MUST("The communicator of a server moves nothing else: traits() is empty and Submit fails.");
  Members members(GetParam(), 1);
  members.Start(SmallBuckets());
  for (int index = 0; index < GetParam().servers; ++index) {
    EXPECT_EQ(members.server(index).traits().kinds, 0u);
    EXPECT_EQ(Query<ParameterClient>(members.server(index)), nullptr);
    (void)ExpectRefused(members.server(index), {.kind = TransferKind::kBarrier});
  }
  EXPECT_EQ(Query<ParameterServer>(members.communicator(0)), nullptr);
}

TEST_P(ServedMembers, AbortOfAServerEndsServeWithItsReasonAndTheRanksWithItsName) {
  MUST(
      "Abort of a server's communicator ends Serve with its reason; the ranks lose "
      "ServerId(index).");
  Members members(GetParam(), 2);
  const auto buckets = members.Start(ManyBuckets());
  for (int rank = 0; rank < 2; ++rank) ASSERT_OK(PushStep(members, rank, buckets, 1));
  const int last = GetParam().servers - 1;
  const auto start = Clock::now();
  members.server(last).Abort(kDiskFull);
  EXPECT_STREQ(members.Served(last).message(), kDiskFull.message());
  EXPECT_LT(Clock::now() - start, kPromptly);
  const Status lost = PushStep(members, 0, buckets, 2);
  EXPECT_EQ(lost.code(), StatusCode::kPeerLost) << lost.message();
  EXPECT_EQ(ServerOfId(lost.rank()), last) << lost.message();
}

SERVED_SUITE(ServedBounded);
SERVED_SUITE(ServedAsyncLoss);
SERVED_SUITE(ServedAsyncInside);
SERVED_SUITE(ServedSyncLoss);
SERVED_SUITE(ServedAbort);
SERVED_SUITE(ServedMembers);

}  // namespace
}  // namespace engine::conform
