#include "kit/describe.h"

#include <gtest/gtest.h>

#include <limits>

#include "kit/communicator.h"

namespace engine::kit {
namespace {

TEST(Describe, SaysKindSizeAndPosition) {
  EXPECT_STREQ(Describe(Transfer{.count = 300000, .sequence = 17}).c_str(),
               "all-reduce of 1.2 MB (sequence 17)");
  EXPECT_STREQ(Describe(Transfer{.count = 10, .bucket = 3, .sequence = 17}).c_str(),
               "all-reduce of 40 B (bucket 3, sequence 17)");
  EXPECT_STREQ(Describe(Transfer{.kind = TransferKind::kBarrier, .sequence = 3}).c_str(),
               "barrier (sequence 3)");
  const Transfer gather{
      .kind = TransferKind::kAllGather, .dtype = DType::kUint8, .count = 7, .sequence = 5};
  EXPECT_STREQ(Describe(gather).c_str(), "all-gather of 7 B (sequence 5)");
  EXPECT_STREQ(Describe(IdOf(gather), 2).c_str(), "all-gather of 7 uint8 (bucket 2, sequence 5)");
  const Transfer two[] = {gather, gather};
  EXPECT_STREQ(Describe(two).c_str(), "group of 2 transfers of 14 B in all (sequence 5)");
}

TEST(Describe, TheLongestTextFits) {
  EXPECT_STREQ(Describe(IdOf({.kind = TransferKind::kReduceScatter,
                              .dtype = DType::kBFloat16,
                              .count = std::numeric_limits<int64_t>::max(),
                              .sequence = UINT64_MAX}),
                        UINT32_MAX - 1)
                   .c_str(),
               "reduce-scatter of 9223372036854775807 bfloat16 (bucket 4294967294, sequence "
               "18446744073709551615)");
}

TEST(Describe, BytesOfAPeerMayHoldAnything) {
  EXPECT_STREQ(Describe(TransferId{.kind = 200}).c_str(), "something that is no transfer");
  EXPECT_STREQ(Describe(TransferId{.dtype = 5}).c_str(), "something that is no transfer");
}

TEST(Disagreement, SaysWhatDescribeDoesNotShow) {
  const Transfer transfer{.count = 10, .key = 4, .sequence = 2};
  Transfer other = transfer;
  EXPECT_TRUE(Agree(IdOf(transfer), IdOf(other)));
  const auto words = [&] {
    EXPECT_FALSE(Agree(IdOf(transfer), IdOf(other)));
    return std::string(Disagreement(IdOf(transfer), IdOf(other), 3).message());
  };
  const std::string same = "rank 3 submitted all-reduce of 10 float32 (sequence 2)";
  const std::string what_to_do =
      " instead: all ranks must submit the same transfers in the same order";
  other.root = 1;
  EXPECT_EQ(words(), same + " with another root" + what_to_do);
  other.reduction = Reduction::kMax;
  EXPECT_EQ(words(), same + " with another reduction" + what_to_do);
  other.key = 5;
  EXPECT_EQ(words(), same + " with another key" + what_to_do);
  other = transfer;
  other.count = 11;
  EXPECT_EQ(words(), "rank 3 submitted all-reduce of 11 float32 (sequence 2)" + what_to_do);
  EXPECT_EQ(Disagreement(IdOf(transfer), IdOf(other), 3).rank(), 3);
}

TEST(CheckTransfer, RefusesWhatCannotBe) {
  float data = 0;
  const RankInfo ranks{.rank = 1, .world_size = 2};
  const Transfer good{.send = &data, .recv = &data, .count = 1};
  const auto code = [&](Transfer transfer) {
    return CheckTransfer(transfer, ranks, "test", TransferKind::kBarrier).code();
  };
  EXPECT_EQ(code(good), StatusCode::kOk);
  Transfer bad = good;
  bad.kind = TransferKind::kPush;
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good, bad.count = -1;
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good, bad.timeout_ms = 0;
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good, bad.dtype = static_cast<DType>(9);
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad = good, bad.send = nullptr;
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
  bad.kind = TransferKind::kBroadcast;  // from rank 0, so this one sends nothing
  EXPECT_EQ(code(bad), StatusCode::kOk);
  bad.root = 2;
  EXPECT_EQ(code(bad), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace engine::kit
