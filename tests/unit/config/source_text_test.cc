#include "app/config/source_text.h"

#include <gmock/gmock.h>

namespace engine::config {
namespace {

constexpr StatusCode kConfig = StatusCode::kConfig;

TEST(SourceText, CountsCharactersAndKeepsTabsAboveTheCaret) {
  const SourceText source("f", "a\n\tgrün x\n");
  const size_t x = source.text().find('x');
  EXPECT_STREQ(source.Error(kConfig, x, "wrong").message(), "f:2:7: wrong\n  \tgrün x\n  \t     ^");
  EXPECT_EQ(source.Place(x), "f:2");
  EXPECT_EQ(source.Place(SourceText::kNowhere), "f");
}

TEST(SourceText, ConvertsPlacesOfProtobuf) {
  const SourceText source("f", "ab\n\tc\td");
  EXPECT_EQ(source.OffsetOf(0, 1), 1u);
  EXPECT_EQ(source.OffsetOf(1, 8), source.text().find('c'));
  EXPECT_EQ(source.OffsetOf(1, 16), source.text().find('d'));
  EXPECT_EQ(source.OffsetOf(0, 99), 2u) << "the end of the line";
  EXPECT_EQ(source.OffsetOf(9, 0), SourceText::kNowhere);
  EXPECT_EQ(source.OffsetOf(-1, -1), SourceText::kNowhere);
}

TEST(SourceText, FindsWordsAroundAPlace) {
  const SourceText source("f", "key key: value");
  EXPECT_EQ(source.LastBefore("key", 7), 4u);
  EXPECT_EQ(source.LastBefore("none", 7), 7u);
  EXPECT_EQ(source.LastBefore("longer", 2), 2u);
  EXPECT_EQ(source.FirstAfter("value", 3), 9u);
  EXPECT_EQ(source.FirstAfter("none", 3), 3u);
  EXPECT_EQ(source.FirstAfter("key", SourceText::kNowhere), SourceText::kNowhere);
}

TEST(SourceText, ShowsPartOfALongLineAndNoControlCharacters) {
  const SourceText source("f", std::string(1000, 'a') + "\033" + std::string(100000, 'b'));
  const std::string message = source.Error(kConfig, 1000, "wrong").message();
  EXPECT_THAT(message, ::testing::StartsWith("f:1:1001: wrong\n  aaaa"));
  EXPECT_LT(message.size(), 400u);
  EXPECT_EQ(message.find('\033'), std::string::npos);
  const size_t line = message.find('\n') + 1, caret = message.find('\n', line) + 1;
  EXPECT_EQ(message[line + (message.find('^') - caret)], '?')
      << "the caret is below the failed_rank";
}

TEST(SourceText, AnEmptyTextHasAFirstLine) {
  const SourceText source("f", "");
  EXPECT_STREQ(source.Error(kConfig, SourceText::kNowhere, "empty").message(),
               "f:1:1: empty\n  \n  ^");
}

}  // namespace
}  // namespace engine::config
