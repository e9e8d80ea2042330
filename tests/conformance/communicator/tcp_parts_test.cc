// The parts of the tcp plugin that need no network.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "plugins/tcp/all_reduce_choice.h"
#include "plugins/tcp/describe.h"
#include "plugins/tcp/reduce.h"

namespace engine::tcp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(TcpAllReduceChoice, ExchangesBetweenTwoRanksAndWhenSmall) {
  using enum AllReduceAlgorithm;
  EXPECT_EQ(ChooseAllReduce(2, 0), kExchange);
  EXPECT_EQ(ChooseAllReduce(2, size_t{64} << 20), kExchange);
  EXPECT_EQ(ChooseAllReduce(3, 16 << 10), kExchange);
  EXPECT_EQ(ChooseAllReduce(3, (16 << 10) + 1), kReduceScatterAllGather);
  EXPECT_EQ(ChooseAllReduce(64, size_t{64} << 20), kReduceScatterAllGather);
}

float CombineOne(DType dtype, Reduction reduction, float a, float b) {
  float out = 0;
  KernelsFor(dtype, reduction).combine(&out, &a, &b, 1);
  return out;
}

TEST(TcpReduce, MaxAndMinPropagateNaNFromEitherSide) {
  for (const Reduction reduction : {Reduction::kMax, Reduction::kMin}) {
    EXPECT_TRUE(std::isnan(CombineOne(DType::kFloat32, reduction, kNaN, 1)));
    EXPECT_TRUE(std::isnan(CombineOne(DType::kFloat32, reduction, 1, kNaN)));
  }
  EXPECT_EQ(CombineOne(DType::kFloat32, Reduction::kMax, -2, 1), 1);
  EXPECT_EQ(CombineOne(DType::kFloat32, Reduction::kMin, -2, 1), -2);
}

TEST(TcpReduce, IntegersWrapAround) {
  int32_t a = std::numeric_limits<int32_t>::max(), b = 2;
  KernelsFor(DType::kInt32, Reduction::kSum).combine(&a, &a, &b, 1);
  EXPECT_EQ(a, std::numeric_limits<int32_t>::min() + 1);
  uint8_t c = 250, d = 10;
  KernelsFor(DType::kUint8, Reduction::kSum).combine(&c, &c, &d, 1);
  EXPECT_EQ(c, 4);
}

// The result may take the place of either operand.
TEST(TcpReduce, InPlaceEqualsOutOfPlace) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> a(1001), b(1001), apart(1001);
  for (float& x : a) x = value(random);
  for (float& x : b) x = value(random);
  const ReduceKernels& sum = KernelsFor(DType::kFloat32, Reduction::kSum);
  sum.combine(apart.data(), a.data(), b.data(), a.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(apart[i], a[i] + b[i]);
  std::vector<float> left = a, right = b;
  sum.combine(left.data(), left.data(), b.data(), a.size());
  sum.combine(right.data(), a.data(), right.data(), a.size());
  EXPECT_EQ(left, apart);
  EXPECT_EQ(right, apart);
}

float Load16(DType dtype, uint16_t bits) {
  float out = 0;
  KernelsFor(dtype, Reduction::kSum).load(&out, &bits, 1);
  return out;
}

uint16_t Store16(DType dtype, float value) {
  uint16_t out = 0;
  KernelsFor(dtype, Reduction::kSum).store(&out, &value, 1);
  return out;
}

// Every value survives a round trip, and what lies between two of them goes to the nearer, from the
// middle to the even one.
void CheckFormat(DType dtype, uint16_t infinity) {
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const auto lower = static_cast<uint16_t>(bits);
    const float value = Load16(dtype, lower);
    ASSERT_EQ(Store16(dtype, value), lower);
    ASSERT_EQ(Store16(dtype, -value), lower | 0x8000);
    ASSERT_EQ(Load16(dtype, lower | 0x8000), -value);
    if (bits + 1 == infinity) break;
    const float next = Load16(dtype, static_cast<uint16_t>(bits + 1));
    ASSERT_LT(value, next);
    const double middle = (double{value} + next) / 2;
    if (static_cast<float>(middle) == middle) {  // not below the subnormals of float32
      const auto half = static_cast<float>(middle);
      const auto even = static_cast<uint16_t>(bits + (bits & 1));
      ASSERT_EQ(Store16(dtype, half), even);
      ASSERT_EQ(Store16(dtype, std::nextafter(half, 0.0f)), lower);
      ASSERT_EQ(Store16(dtype, std::nextafter(half, kInfinity)), bits + 1);
    }
  }
  EXPECT_EQ(Store16(dtype, kInfinity), infinity);
  EXPECT_EQ(Load16(dtype, infinity), kInfinity);
  EXPECT_EQ(Store16(dtype, -kInfinity), infinity | 0x8000);
  EXPECT_EQ(Store16(dtype, std::numeric_limits<float>::max()), infinity);
  EXPECT_TRUE(std::isnan(Load16(dtype, Store16(dtype, kNaN))));
  EXPECT_TRUE(std::isnan(Load16(dtype, Store16(dtype, std::bit_cast<float>(0x7f800001)))));
}

TEST(TcpReduce, Float16RoundsToNearestEven) {
  CheckFormat(DType::kFloat16, 0x7c00);
  EXPECT_EQ(Load16(DType::kFloat16, 0x3c00), 1.0f);
  EXPECT_EQ(Load16(DType::kFloat16, 0x0001), 0x1p-24f);
  EXPECT_EQ(Load16(DType::kFloat16, 0x7bff), 65504.0f);
  EXPECT_EQ(Store16(DType::kFloat16, 65519.0f), 0x7bff);
  EXPECT_EQ(Store16(DType::kFloat16, 65520.0f), 0x7c00);
}

TEST(TcpReduce, BFloat16RoundsToNearestEven) {
  CheckFormat(DType::kBFloat16, 0x7f80);
  EXPECT_EQ(Load16(DType::kBFloat16, 0x3f80), 1.0f);
}

// 256 + 1 + 1 + 1 is 256 in bfloat16 if each sum is rounded, but 260 if only the last is.
TEST(TcpReduce, SixteenBitSumsAreRoundedOnce) {
  const uint16_t terms[] = {Store16(DType::kBFloat16, 256), Store16(DType::kBFloat16, 1)};
  const ReduceKernels& sum = KernelsFor(DType::kBFloat16, Reduction::kSum);
  float accumulator = 0;
  sum.load(&accumulator, &terms[0], 1);
  for (int i = 0; i < 3; ++i) sum.fold(&accumulator, &terms[1], 1);
  uint16_t out = 0;
  sum.store(&out, &accumulator, 1);
  EXPECT_EQ(Load16(DType::kBFloat16, out), 260.0f);
}

TEST(TcpDescribe, SaysKindSizeAndSequence) {
  EXPECT_STREQ(Describe(Transfer{.count = 300000, .sequence = 17}).c_str(),
               "all-reduce of 1.2 MB (sequence 17)");
  EXPECT_STREQ(Describe(Transfer{.count = 10, .unit = 3, .sequence = 17}).c_str(),
               "all-reduce of 40 B (unit 3, sequence 17)");
  EXPECT_STREQ(Describe(Transfer{.kind = TransferKind::kBarrier, .sequence = 3}).c_str(),
               "barrier (sequence 3)");
  const Transfer gather{
      .kind = TransferKind::kAllGather, .dtype = DType::kUint8, .count = 7, .sequence = 5};
  EXPECT_STREQ(Describe(gather).c_str(), "all-gather of 7 B (sequence 5)");
  EXPECT_STREQ(Describe(HeaderOf(gather)).c_str(), "all-gather of 7 uint8 (sequence 5)");
  TransferHeader foreign;
  foreign.magic = 1;
  EXPECT_STREQ(Describe(foreign).c_str(), "something that is no transfer");
}

TEST(TcpDescribe, SaysWhatIsNotSeenInWords) {
  const Transfer transfer{.count = 10, .key = 4};
  Transfer other = transfer;
  EXPECT_STREQ(HiddenDifference(HeaderOf(transfer), HeaderOf(other)).c_str(), "");
  other.root = 1;
  EXPECT_STREQ(HiddenDifference(HeaderOf(transfer), HeaderOf(other)).c_str(), " with another root");
  other.reduction = Reduction::kMax;
  EXPECT_STREQ(HiddenDifference(HeaderOf(transfer), HeaderOf(other)).c_str(),
               " with another reduction");
  other.key = 5;
  EXPECT_STREQ(HiddenDifference(HeaderOf(transfer), HeaderOf(other)).c_str(), " with another key");
}

TEST(TcpDescribe, TheLongestTextFits) {
  TransferHeader header = HeaderOf({.kind = TransferKind::kReduceScatter,
                                    .dtype = DType::kBFloat16,
                                    .count = std::numeric_limits<int64_t>::max(),
                                    .unit = UINT32_MAX - 1,
                                    .sequence = UINT64_MAX});
  EXPECT_STREQ(Describe(header).c_str(),
               "reduce-scatter of 9223372036854775807 bfloat16 (unit 4294967294, sequence "
               "18446744073709551615)");
}

}  // namespace
}  // namespace engine::tcp
