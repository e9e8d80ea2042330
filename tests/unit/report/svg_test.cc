#include "tools/report/svg.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace engine::report {
namespace {

using ::testing::DoubleNear;

TEST(Ticks, AreRound) {
  EXPECT_THAT(Ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(Ticks(0.93, 1.07, 3),
              ElementsAre(DoubleNear(0.95, 1e-9), DoubleNear(1, 1e-9), DoubleNear(1.05, 1e-9)));
  EXPECT_THAT(Ticks(3, 3, 4), ElementsAre(3));
}

TEST(TickLabel, HasTheDigitsOfTheDistance) {
  EXPECT_EQ(TickLabel(0.95, 0.05), "0.95");
  EXPECT_EQ(TickLabel(20, 10), "20");
  EXPECT_EQ(TickLabel(1.5, 0.5), "1.5");
  EXPECT_EQ(TickLabel(3e-5, 1e-5), "3e-05");
}

TEST(Svg, EscapesTextAndTitles) {
  Svg svg(100, 50);
  svg.Text(1, 2, "end", "tick", "a<b");
  svg.Circle(3, 4, 5, "dot", "x & \"y\"");
  const std::string text = svg.Finish("<label>", "wide");
  EXPECT_THAT(text, HasSubstr(">a&lt;b</text>"));
  EXPECT_THAT(text, HasSubstr("<title>x &amp; &quot;y&quot;</title></circle>"));
  EXPECT_THAT(text, HasSubstr("aria-label=\"&lt;label&gt;\" viewBox=\"0 0 100.0 50.0\""));
}

TEST(Axis, MapsBothWays) {
  const Axis axis{10, 20, 200, 100};
  EXPECT_DOUBLE_EQ(axis(10), 200);
  EXPECT_DOUBLE_EQ(axis(20), 100);
  EXPECT_DOUBLE_EQ(axis(15), 150);
}

}  // namespace
}  // namespace engine::report
