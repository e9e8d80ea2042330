// Before the first step and beside the steps: registration, values, states, step numbers, what is
// refused.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/parameter_server/members.h"
#include "tools/conform/parameter_server/served_fixture.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/ext/parameter_server.h";

using ServedSetup = Served<kAllModes>;

TEST_P(ServedSetup, RanksAgreeOnTheMode) {
  MUST("A rank's communicator offers push and pull, and traits().mode is the same on all ranks.");
  Members members(GetParam(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(members.client(rank).traits().mode, mode());
    const uint32_t needed = Bit(TransferKind::kPush) | Bit(TransferKind::kPull);
    EXPECT_EQ(members.communicator(rank).traits().kinds & needed, needed);
  }
}

TEST_P(ServedSetup, BucketsThatDifferAreRefused) {
  MUST(
      "Register: the buckets are the same on all ranks, else kInvalidArgument on those that "
      "differ from the first.");
  const TestBucket first = PlainBucket(31, 100, 10), second = PlainBucket(32, 50);
  TestBucket longer = first, decayed = first, split = first, rows = first, renamed = first;
  longer.spans[0].count = 110;
  decayed.spans[0].weight_decay_scale = 0;
  split.spans = {{.count = 60}, {.count = 40}};
  rows.row = 20;
  renamed.key = 33;
  const std::pair<const char*, std::vector<TestBucket>> differing[] = {
      {"count", {longer, second}}, {"decay", {decayed, second}},
      {"spans", {split, second}},  {"row", {rows, second}},
      {"key", {renamed, second}},  {"one more", {first, second, PlainBucket(34, 5)}},
      {"one less", {first}}};
  for (const auto& [what, buckets] : differing) {
    Members members(GetParam(), 2);
    const std::vector<TestBucket> registered[] = {{first, second}, buckets};
    Status results[2];
    RunRanks(2, [&](int rank) { results[rank] = members.Register(rank, registered[rank]); });
    // Who is the first is not the same at all servers; one that is refused may end the others.
    const auto refused = [&](int rank) {
      return results[rank].code() == StatusCode::kInvalidArgument;
    };
    EXPECT_TRUE(refused(0) || refused(1))
        << what << ": " << results[0].message() << "; " << results[1].message();
  }
}

TEST_P(ServedSetup, BucketsThatMakeNoSenseAreRefused) {
  SHOULD(
      "Register refuses a key of 0, a key twice, spans that are not `count` elements and a row "
      "that does not divide it, with kInvalidArgument.");
  TestBucket rest = PlainBucket(31, 100);
  rest.row = 30;
  const std::vector<TestBucket> sets[] = {
      {PlainBucket(0, 10)}, {PlainBucket(31, 10), PlainBucket(31, 10)}, {rest}};
  for (const auto& buckets : sets) {
    Members members(GetParam(), 1);
    ExpectError(members.Register(0, buckets), StatusCode::kInvalidArgument);
  }
  Members members(GetParam(), 1);
  const ServedSpan span{.count = 9};
  const ServedBucket gap{.key = 31, .count = 10, .spans = {&span, 1}};
  const auto optimizer = OptimizerChoice{}.Make();
  ExpectError(members.client(0).Register({&gap, 1}, *optimizer, kTimeoutMs),
              StatusCode::kInvalidArgument);
}

TEST_P(ServedSetup, EveryRankReadsTheValuesAndStatesThatRankZeroStored) {
  MUST("Store gives a bucket its values or a state, which is zero until then; Load reads them.");
  Members members(GetParam(), 3, kDemandingOptimizers[1]);
  const auto buckets = AwkwardBuckets();
  RunRanks(3, [&](int rank) {
    EXPECT_OK(members.Register(rank, buckets));
    for (const TestBucket& bucket : buckets) {
      if (rank == 0) {
        EXPECT_OK(members.Store(bucket, 0, bucket.Gradient(40, 1)));
        EXPECT_OK(members.Store(bucket, -1, bucket.Values()));
      }
      members.ExpectLoaded(rank, bucket, -1, bucket.Values());
      members.ExpectLoaded(rank, bucket, 0, bucket.Gradient(40, 1));
      members.ExpectLoaded(rank, bucket, 1, bucket.Filled(0));  // until it is stored
    }
  });
}

TEST_P(ServedSetup, AStateThatWasStoredIsUsedByTheUpdate) {
  MUST("A state of the optimizer that was stored is the one that the next update uses.");
  const OptimizerChoice sgd = kDemandingOptimizers[0];
  Members members(GetParam(), 1, sgd);
  const TestBucket bucket = PlainBucket(31, 777);
  ASSERT_OK(members.Register(0, {bucket}));
  ReferenceBucket reference(bucket, sgd.Make());
  const Contribution before{bucket.Gradient(0, 100)};
  reference.Update({&before, 1}, 0.5f, 100);
  ASSERT_OK(members.Store(bucket, 0, reference.states()[0]));
  ASSERT_OK(members.Store(bucket, -1, reference.value()));
  const Contribution after{bucket.Gradient(0, 101)};
  reference.Update({&after, 1}, 0.25f, 101);
  ASSERT_OK(members.Begin(0, 101, 0.25f));
  ASSERT_OK(members.Push(0, bucket, after.gradient));
  std::vector<float> got;
  ASSERT_OK(members.Pull(0, bucket, &got));
  EXPECT_TRUE(SameBits(got, reference.value()));
  members.ExpectLoaded(0, bucket, 0, reference.states()[0]);
}

TEST_P(ServedSetup, ALoadWaitsForTheValuesUntilItsDeadline) {
  MUST("Whoever loads values waits for them at most `timeout_ms`, then kTimeout.");
  Members members(GetParam(), 2);
  const TestBucket bucket = PlainBucket(31, 10);
  members.RegisterAll({bucket});
  std::vector<float> got;
  EXPECT_EQ(members.Load(1, bucket, -1, &got, 100).code(), StatusCode::kTimeout);
}

TEST_P(ServedSetup, LastStepIsTheLastOneOfWhichEverythingWasPushed) {
  MUST(
      "LastStep is the last step of which every server has all pushes of this rank, 0 if there is "
      "none.");
  Members members(GetParam(), 2);
  const auto buckets = members.Start(SmallBuckets());
  uint64_t last = 99;
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_OK(members.client(rank).LastStep(kTimeoutMs, &last));
    EXPECT_EQ(last, 0u);
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_OK(members.Begin(rank, step));
      ASSERT_OK(members.Push(rank, buckets[0], buckets[0].Gradient(rank, step)));
      if (rank == 1 && step == 3) break;
      ASSERT_OK(members.Push(rank, buckets[1], buckets[1].Gradient(rank, step)));
    }
    ASSERT_OK(members.client(0).LastStep(kTimeoutMs, &last));
    EXPECT_EQ(last, step);
  }
  ASSERT_OK(members.client(1).LastStep(kTimeoutMs, &last));
  EXPECT_EQ(last, 2u);
}

TEST_P(ServedSetup, CallsOutOfOrderOrOfNothingAreRefused) {
  SHOULD(
      "Calls before Register, of a bucket or state that there is not, and pushes before "
      "BeginStep are kInvalidArgument.");
  const TestBucket bucket = PlainBucket(31, 10);
  std::vector<float> data(10);
  uint64_t last = 0;
  const auto transfer = [&](Members& members, TransferKind kind) {
    return SubmitAndWait(members.communicator(0), {.kind = kind,
                                                   .send = data.data(),
                                                   .recv = data.data(),
                                                   .count = 10,
                                                   .key = 31,
                                                   .timeout_ms = 1000});
  };
  constexpr bool kFirst = false, kAfterRegister = true;
  using Call = std::function<Status(Members&, ParameterClient&)>;
  const std::tuple<const char*, bool, Call> calls[] = {
      {"Store", kFirst, [&](auto&, auto& c) { return c.Store(31, -1, data.data(), 1000); }},
      {"Load", kFirst, [&](auto&, auto& c) { return c.Load(31, -1, data.data(), 1000); }},
      {"LastStep", kFirst, [&](auto&, auto& c) { return c.LastStep(1000, &last); }},
      {"BeginStep", kFirst, [&](auto&, auto& c) { return c.BeginStep({.step = 1}); }},
      {"push", kFirst, [&](auto& m, auto&) { return transfer(m, TransferKind::kPush); }},
      {"pull", kFirst, [&](auto& m, auto&) { return transfer(m, TransferKind::kPull); }},
      {"Register again", kAfterRegister, [&](auto& m, auto&) { return m.Register(0, {bucket}); }},
      {"Store of no bucket", kAfterRegister,
       [&](auto&, auto& c) { return c.Store(99, -1, data.data(), 1000); }},
      {"Load of no bucket", kAfterRegister,
       [&](auto&, auto& c) { return c.Load(99, -1, data.data(), 1000); }},
      {"Store of no state", kAfterRegister,
       [&](auto&, auto& c) { return c.Store(31, 0, data.data(), 1000); }},
      {"Load of no state", kAfterRegister,
       [&](auto&, auto& c) { return c.Load(31, 0, data.data(), 1000); }},
      {"push before a step", kAfterRegister,
       [&](auto& m, auto&) { return transfer(m, TransferKind::kPush); }},
  };
  for (const auto& [what, registered, call] : calls) {
    Members members(GetParam(), 1);
    if (registered) members.Start({bucket});
    const Status refused = call(members, members.client(0));
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << what << ": " << refused.message();
  }
}

TEST_P(ServedSetup, StepsFollowEachOther) {
  SHOULD(
      "ServedStep::step is one more than that of the last call by this rank, else "
      "kInvalidArgument; the first one is free.");
  for (const uint64_t first : {uint64_t{1}, uint64_t{100}}) {
    for (const uint64_t wrong : {first, first + 2, first - 1}) {
      Members members(GetParam(), 1);
      members.Start({PlainBucket(31, 10)});
      ASSERT_OK(members.Begin(0, first));
      EXPECT_EQ(members.Begin(0, wrong).code(), StatusCode::kInvalidArgument)
          << wrong << " after " << first;
    }
    Members members(GetParam(), 1);
    members.Start({PlainBucket(31, 10)});
    ASSERT_OK(members.Begin(0, first));
    EXPECT_OK(members.Begin(0, first + 1));
  }
}

TEST_P(ServedSetup, TransfersThatMakeNoSenseAreRefused) {
  SHOULD(
      "A push or pull of another key, count or dtype than registered, or of rows that do not "
      "ascend within the bucket, is kInvalidArgument.");
  const TestBucket plain = PlainBucket(31, 10), rows = PlainBucket(32, 12, 3);
  std::vector<float> data(100);
  const std::vector<int32_t> descending = {2, 1}, beyond = {4}, negative = {-1}, twice = {1, 1},
                             one = {1};
  for (const TransferKind kind : {TransferKind::kPush, TransferKind::kPull}) {
    const auto sparse = [](Transfer& t) { t.key = 32, t.count = 12; };
    const std::tuple<const char*, std::function<void(Transfer&)>, const std::vector<int32_t>*>
        wrong[] = {
            {"unknown key", [](Transfer& t) { t.key = 99; }, nullptr},
            {"no key", [](Transfer& t) { t.key = 0; }, nullptr},
            {"count + 1", [](Transfer& t) { t.count = 11; }, nullptr},
            {"count - 1", [](Transfer& t) { t.count = 9; }, nullptr},
            {"int32", [](Transfer& t) { t.dtype = DType::kInt32; }, nullptr},
            {"rows of a bucket without", [](Transfer&) {}, &one},
            {"descending rows", sparse, &descending},
            {"row 4 of 4", sparse, &beyond},
            {"row -1", sparse, &negative},
            {"a row twice", sparse, &twice},
        };
    for (const auto& [what, change, rows_of] : wrong) {
      Transfer transfer{.kind = kind,
                        .send = data.data(),
                        .recv = data.data(),
                        .count = 10,
                        .key = 31,
                        .timeout_ms = 2000};
      change(transfer);
      Members members(GetParam(), 1);
      members.Start({plain, rows});
      ASSERT_OK(members.Begin(0, 1));
      if (rows_of != nullptr) members.client(0).SelectRows(transfer.key, *rows_of);
      const Status refused = SubmitAndWait(members.communicator(0), transfer);
      EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument)
          << Name(kind) << ", " << what << ": " << refused.message();
    }
  }
}

TEST_P(ServedSetup, CollectivesWorkBesidePushesAndPulls) {
  MUST("Collectives and pushes and pulls may be under way at once.");
  constexpr int kRanks = 3;
  Members members(GetParam(), kRanks);
  const auto buckets = members.Start(SmallBuckets());
  const bool ordered = members.communicator(0).traits().ordered != 0;
  RunRanks(kRanks, [&](int rank) {
    TransferBuffers sum({.count = 1000, .in_place = true}, rank, kRanks);
    TransferBuffers sent(
        {.kind = TransferKind::kBroadcast, .count = 500, .in_place = true, .root = 1}, rank,
        kRanks);
    std::vector<float> pulled;
    for (uint64_t step = 1; step <= 5; ++step) {
      ASSERT_OK(members.Begin(rank, step));
      sum.Fill();
      sent.Fill();
      std::vector<Transfer> transfers = {
          sum.MakeTransfer(3 * step - 3, 501), sent.MakeTransfer(3 * step - 2, 502),
          Transfer{.kind = TransferKind::kBarrier, .key = 503, .sequence = 3 * step - 1}};
      if (!ordered) std::rotate(transfers.begin(), transfers.begin() + rank, transfers.end());
      const std::vector<float> gradient = buckets[0].Gradient(rank, step);
      Work* const push = members.SubmitPush(rank, buckets[0], gradient);
      std::vector<Work*> works;
      for (const Transfer& transfer : transfers) {
        works.push_back(MustSubmit(members.communicator(rank), transfer));
      }
      ASSERT_OK(Finish(push));
      works.push_back(members.SubmitPull(rank, buckets[0], &pulled));
      for (Work* work : works) EXPECT_OK(Finish(work));
      EXPECT_TRUE(sum.Check() && sent.Check()) << "step " << step;
    }
  });
}

SERVED_SUITE(ServedSetup);

}  // namespace
}  // namespace engine::conform
