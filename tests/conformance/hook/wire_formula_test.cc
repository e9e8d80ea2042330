// cast_bf16, cast_fp16 and topk against formulas in double precision.

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/matchers.h"
#include "tools/conform/hook/wire_rig.h"

namespace engine::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A format of 1 sign, `exponent_bits` and `fraction_bits`, as IEEE 754 has them.
struct SmallFloat {
  const char* plugin;
  int exponent_bits;
  int fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }

  // Of the bits without the sign, finite ones.
  double ValueOf(uint32_t magnitude) const {
    const auto exponent = static_cast<int>(magnitude >> fraction_bits);
    const double fraction = magnitude & ((1u << fraction_bits) - 1);
    const double scale = std::ldexp(1.0, -fraction_bits);
    return exponent == 0 ? std::ldexp(fraction * scale, 1 - bias())
                         : std::ldexp(1 + fraction * scale, exponent - bias());
  }

  // Rounded to nearest, ties to even, by looking at the two neighbours. Infinity is as far as the
  // number after the largest would be.
  uint32_t Nearest(double magnitude) const {
    uint32_t low = 0, high = infinity();
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (ValueOf(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - ValueOf(low), above = ValueOf(high) - magnitude;
    if (below != above) return below < above ? low : high;
    return low % 2 == 0 ? low : high;
  }

  uint16_t Expected(float x) const {
    const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isinf(x)) return static_cast<uint16_t>(sign | infinity());
    return static_cast<uint16_t>(sign | Nearest(std::fabs(double{x})));
  }
};

constexpr SmallFloat kFormats[] = {{"cast_bf16", 8, 7}, {"cast_fp16", 5, 10}};

class Cast {
 public:
  explicit Cast(const char* plugin)
      : hook_(CreateFrom<GradientHook>(PluginPath(plugin))), wire_(WireOf(*hook_)) {}

  std::vector<uint16_t> Narrow(std::vector<float> values) const {
    WireSpan span(*wire_, std::move(values));
    const std::vector<uint8_t> bytes = Pack(*wire_, span);
    WireBytesOf pieces(*wire_, span.count());
    ForEachPiece(span, pieces, [&](const WireCall& call) { return wire_->Pack(call); });
    EXPECT_EQ(pieces.bytes(), bytes);
    std::vector<uint16_t> halves(bytes.size() / sizeof(uint16_t));
    std::memcpy(halves.data(), bytes.data(), bytes.size());
    return halves;
  }
  std::vector<float> Widen(const std::vector<uint16_t>& halves) const {
    WireSpan span(*wire_, std::vector<float>(halves.size()));
    WireBytesOf bytes(*wire_, span.count());
    std::memcpy(bytes.data(), halves.data(), halves.size() * sizeof(uint16_t));
    EXPECT_TRUE(wire_->Unpack(span.Call(bytes.data())).ok());
    WireSpan pieces(*wire_, std::vector<float>(halves.size()));
    ForEachPiece(pieces, bytes, [&](const WireCall& call) { return wire_->Unpack(call); });
    for (size_t i = 0; i < halves.size(); ++i) {
      const float one = span.gradient[i], other = pieces.gradient[i];
      EXPECT_TRUE(one == other || (std::isnan(one) && std::isnan(other))) << i;
    }
    return span.gradient;
  }

 private:
  // Too small for the loops of wide registers, which may have other instructions.
  template <typename Work>
  static void ForEachPiece(WireSpan& span, WireBytesOf& bytes, const Work& work) {
    for (int64_t begin = 0; begin < span.count(); begin += 7) {
      WireCall call = span.Call(bytes.data() + 2 * begin);
      call.gradient += begin;
      call.offset = begin;
      call.count = std::min<int64_t>(7, span.count() - begin);
      EXPECT_TRUE(work(call).ok());
    }
  }

  std::unique_ptr<GradientHook> hook_;
  WireFormat* const wire_;
};

void ExpectNarrow(const SmallFloat& format, const std::vector<float>& values) {
  const auto halves = Cast(format.plugin).Narrow(values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(halves[i], format.Expected(values[i]))
        << format.plugin << " of " << values[i] << " (bits " << std::hex
        << std::bit_cast<uint32_t>(values[i]) << ")";
  }
}

TEST(WireCast, EveryValueOfTheFormatIsExact) {
  for (const SmallFloat& format : kFormats) {
    std::vector<uint16_t> halves(1 << 16);
    std::iota(halves.begin(), halves.end(), uint16_t{0});
    const Cast cast(format.plugin);
    const auto values = cast.Widen(halves);
    const auto back = cast.Narrow(values);
    for (size_t i = 0; i < halves.size(); ++i) {
      const uint32_t magnitude = halves[i] & 0x7fff;
      if (magnitude > format.infinity()) {
        ASSERT_TRUE(std::isnan(values[i])) << i;
        ASSERT_GT(back[i] & 0x7fffu, format.infinity()) << "a NaN stays one: " << i;
        continue;
      }
      const double size =
          magnitude == format.infinity() ? double{kInfinity} : format.ValueOf(magnitude);
      ASSERT_EQ(std::fabs(values[i]), size) << i;
      ASSERT_EQ(std::signbit(values[i]), halves[i] >= 0x8000) << i;
      ASSERT_EQ(back[i], halves[i]);
    }
  }
}

// At each point between two neighbours where rounding changes its direction, on it, and next to it.
TEST(WireCast, RoundsToNearestAndTiesToEven) {
  for (const SmallFloat& format : kFormats) {
    std::vector<float> values;
    for (uint32_t magnitude = 0; magnitude < format.infinity(); ++magnitude) {
      const auto middle =
          static_cast<float>((format.ValueOf(magnitude) + format.ValueOf(magnitude + 1)) / 2);
      if (std::isinf(middle)) continue;
      for (const float x :
           {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity)}) {
        values.push_back(x);
        values.push_back(-x);
      }
    }
    ExpectNarrow(format, values);
  }
}

TEST(WireCast, RoundsFloatsOfAllExponents) {
  std::mt19937 random(3);
  using Limits = std::numeric_limits<float>;
  std::vector<float> values = {0.0f,       -0.0f,         kInfinity,
                               -kInfinity, Limits::max(), Limits::denorm_min()};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (int i = 0; i < 400; ++i) {
      const uint32_t bits = exponent << 23 | (random() & 0x807fffff);
      values.push_back(std::bit_cast<float>(bits));
    }
  }
  for (const SmallFloat& format : kFormats) ExpectNarrow(format, values);
}

TEST(WireCast, NaNsStayNaN) {
  std::mt19937 random(4);
  std::vector<float> values = {std::bit_cast<float>(0x7f800001u),
                               std::bit_cast<float>(0xffffffffu)};
  for (int i = 0; i < 1000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    values.push_back(std::bit_cast<float>(0x7f800001u | (bits & 0x807fffff)));
  }
  for (const SmallFloat& format : kFormats) {
    for (const uint16_t half : Cast(format.plugin).Narrow(values)) {
      ASSERT_GT(half & 0x7fffu, format.infinity());
    }
  }
}

// ---- topk

struct Sent {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

class TopKTest : public testing::Test {
 protected:
  void Make(const std::string& ratio) {
    hook_ = CreateFrom<GradientHook>(PluginPath("topk"), {{"ratio", ratio}});
    wire_ = WireOf(*hook_);
  }
  Sent Send(WireSpan& span) {
    const std::vector<uint8_t> bytes = Pack(*wire_, span);
    const size_t kept = bytes.size() / 8;
    Sent sent{std::vector<uint32_t>(kept), std::vector<float>(kept)};
    std::memcpy(sent.indices.data(), bytes.data(), 4 * kept);
    std::memcpy(sent.values.data(), bytes.data() + 4 * kept, 4 * kept);
    return sent;
  }
  std::unique_ptr<GradientHook> hook_;
  WireFormat* wire_ = nullptr;
};

// The positions of the `kept` largest magnitudes, those of equal ones that come first; ascending.
std::vector<uint32_t> Largest(const std::vector<float>& values, size_t kept) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  return order;
}

TEST_F(TopKTest, SendsTheLargestAndOfEqualOnesTheFirst) {
  std::mt19937 random(5);
  for (const char* ratio : {"0.01", "0.1", "0.5", "1"}) {
    Make(ratio);
    for (const size_t count : {1u, 2u, 31u, 32u, 33u, 1000u, 4096u, 10007u}) {
      for (const int kind : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::string(ratio) + " of " + std::to_string(count) + ", kind " +
                     std::to_string(kind));
        std::vector<float> values(count);
        for (float& x : values) {
          const auto bits = static_cast<uint32_t>(random());
          if (kind == 0) x = std::normal_distribution<float>()(random);
          if (kind == 1) x = static_cast<float>(bits % 5) - 2;  // nearly all are ties
          if (kind == 2) x = 1e-40f * static_cast<float>(bits % 1000);
          if (kind == 3) x = bits % 7 == 0 ? std::bit_cast<float>(bits & 0xbfffffff) : 0;
        }
        WireSpan span(*wire_, values);
        const Sent sent = Send(span);
        const auto kept = std::max<size_t>(
            1, static_cast<size_t>(std::llround(std::stod(ratio) * double(count))));
        ASSERT_EQ(sent.indices, Largest(values, kept));
        for (size_t i = 0; i < kept; ++i) ASSERT_EQ(sent.values[i], values[sent.indices[i]]);
      }
    }
  }
}

// To the bit, in each of many steps.
TEST_F(TopKTest, WhatIsSentAndWhatIsKeptAreTheGradientAndWhatWasKept) {
  Make("0.05");
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  WireSpan span(*wire_, std::vector<float>(777));
  for (int step = 0; step < 50; ++step) {
    std::vector<float> expected = span.states[0];
    for (size_t i = 0; i < expected.size(); ++i) {
      span.gradient[i] = normal(random);
      expected[i] += span.gradient[i];
    }
    const Sent sent = Send(span);
    std::vector<float> found = span.states[0];
    for (size_t i = 0; i < sent.indices.size(); ++i) {
      ASSERT_EQ(found[sent.indices[i]], 0) << "sent and kept";
      found[sent.indices[i]] = sent.values[i];
    }
    ASSERT_EQ(found, expected) << "step " << step;
  }
}

// What is not finite must not be hidden in a residual for ever.
TEST_F(TopKTest, SendsWhatIsNotFiniteFirst) {
  Make("0.02");
  std::vector<float> values(100, 1e30f);
  values[40] = -kInfinity;
  values[77] = std::nanf("");
  WireSpan span(*wire_, values);
  const Sent sent = Send(span);
  EXPECT_EQ(sent.indices, (std::vector<uint32_t>{40, 77}));
  EXPECT_TRUE(std::isnan(sent.values[1]));
  EXPECT_EQ(span.states[0][77], 0);
}

TEST_F(TopKTest, RefusesPositionsOutsideOfTheSpan) {
  Make("0.1");
  WireSpan span(*wire_, std::vector<float>(100, 1));
  WireBytesOf bytes(*wire_, span.count());
  ASSERT_TRUE(wire_->Pack(span.Call(bytes.data())).ok());
  const uint32_t position = 100;
  std::memcpy(bytes.data() + 4 * 3, &position, 4);
  const Status status = wire_->Unpack(span.Call(bytes.data()));
  EXPECT_EQ(status.code(), StatusCode::kBadData);
  EXPECT_THAT(status.message(), HasSubstr("element 100 of a span of 100"));
}

}  // namespace
}  // namespace engine::test
