// When priority_sched starts transfers: order, credit, and how long an urgent gradient waits.
#include <gtest/gtest.h>

#include <deque>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

// Buckets of 4096 bytes, two of which may be under way.
EventPlayer Play(const ModelSketch& model) {
  return EventPlayer("priority_sched", model,
                     {{"fuse_bytes", "0"}, {"slice_bytes", "4096"}, {"credit_bytes", "8192"}});
}

TEST(PrioritySched, SendsFirstWhatIsNeededFirst) {
  EventPlayer play = Play(ModelSketch::Chain({1024, 1024, 1024, 1024}));
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_THAT(play.Ready({"bucket1", "bucket0", "bucket2"}), ElementsAre("bucket2", "bucket1"));
    EXPECT_THAT(play.Ready({"bucket3"}), IsEmpty());
    EXPECT_THAT(play.Ready({"statistics"}), ElementsAre("statistics"));  // need no credit
    EXPECT_THAT(play.Done({"statistics"}), IsEmpty());
    EXPECT_THAT(play.Done({"bucket1"}), ElementsAre("bucket3"));
    EXPECT_THAT(play.Done({"bucket3", "bucket2"}), ElementsAre("bucket0"));
    play.Done({"bucket0"});
  }
}

TEST(PrioritySched, NeverSkipsTheHeadForASmallerOne) {
  EventPlayer play =
      Play(ModelSketch::Chain({1024, 10, 10, 1024}));  // bucket1 and bucket2 are small
  EXPECT_THAT(play.Ready({"bucket0"}), ElementsAre("bucket0"));
  EXPECT_THAT(play.Ready({"bucket2"}), ElementsAre("bucket2"));
  EXPECT_THAT(play.Ready({"bucket3"}), IsEmpty());  // 4096 + 40 + 4096 bytes are too many
  EXPECT_THAT(play.Ready({"bucket1"}), IsEmpty());  // of less need than bucket3, but it would fit
  EXPECT_THAT(play.Done({"bucket2"}), ElementsAre("bucket3"));
}

TEST(PrioritySched, SendsAloneWhatIsLargerThanTheCredit) {
  EventPlayer play("priority_sched", ThreeLayers(), {{"fuse_bytes", "0"}, {"credit_bytes", "100"}});
  EXPECT_THAT(play.Ready({"bucket0", "bucket1"}), ElementsAre("bucket1"));
  EXPECT_THAT(play.Done({"bucket1"}), ElementsAre("bucket0"));
}

// On other ranks than 0, which are not asked but told.
TEST(PrioritySched, CountsWhatRank0Started) {
  EventPlayer play = Play(ModelSketch::Chain({1024, 1024, 1024, 1024}));
  play.Tell(EventKind::kTaskReady, {"bucket0", "bucket1", "bucket2", "bucket3"});
  play.Tell(EventKind::kTaskStarted, {"bucket0", "bucket3"});
  EXPECT_THAT(play.TakeIo(), IsEmpty());  // their bytes are the credit
  EXPECT_THAT(play.Done({"bucket0"}), ElementsAre("bucket2"));
}

TEST(PrioritySched, SendsInReadyOrderWhenUpdatesWaitForAllGradients) {
  ModelSketch model = ThreeLayers();
  model.global_hook = true;
  EventPlayer play = Play(model);
  EXPECT_THAT(play.Ready({"bucket2", "bucket0", "bucket1"}), ElementsAre("bucket0", "bucket1"));
}

TEST(PrioritySched, GathersByNeedWhenShardedUpdatesWaitForAllGradients) {
  ModelSketch model = ThreeLayers();
  model.global_hook = model.sharded = true;
  EventPlayer play = Play(model);
  EXPECT_THAT(play.Ready({"scatter2", "scatter0", "scatter1"}),
              ElementsAre("scatter0", "scatter1"));
  EXPECT_THAT(play.Done({"scatter0", "scatter1"}), ElementsAre("scatter2"));
  play.Done({"scatter2"});
  EXPECT_THAT(play.Ready({"gather0", "gather1", "gather2"}), ElementsAre("gather2", "gather1"));
}

// 64 KiB that the next forward pass needs first become ready while 8 MiB that it needs later are
// pending. The link sends one transfer after another: how many bytes leave before the 64 KiB?
TEST(PrioritySched, LetsAnUrgentGradientWaitForNoMoreThanCreditAndOneSlice) {
  constexpr uint64_t kUrgent = 64 << 10, kSlice = 256 << 10, kCredit = 512 << 10;
  for (size_t slices_before = 0; slices_before <= 32; ++slices_before) {
    SCOPED_TRACE(std::to_string(slices_before) + " slices left before");
    EventPlayer play("priority_sched", ModelSketch::Chain({kUrgent / 4, (8 << 20) / 4}),
                     {{"slice_bytes", "262144"}, {"credit_bytes", "524288"}});
    ASSERT_EQ(play.task("bucket32").size_bytes, kUrgent);
    std::deque<std::string> link;
    const auto start = [&](const EventPlayer::Names& names) {
      link.insert(link.end(), names.begin(), names.end());
    };
    const auto leave = [&] {
      const std::string first = link.front();
      link.pop_front();
      start(play.Done({first}));
    };
    for (int bucket = 0; bucket < 32; ++bucket)
      start(play.Ready({"bucket" + std::to_string(bucket)}));
    for (size_t i = 0; i < slices_before; ++i) leave();
    start(play.Ready({"bucket32"}));
    uint64_t waited = 0;
    while (!link.empty() && link.front() != "bucket32") {
      waited += play.task(link.front()).size_bytes;
      leave();
    }
    ASSERT_FALSE(link.empty());
    EXPECT_LE(waited, kCredit + kSlice);
    EXPECT_GE(waited, slices_before < 28 ? kCredit - kSlice : 0);  // the link is kept busy
  }
}

}  // namespace
}  // namespace engine::test
