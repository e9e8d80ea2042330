#include "app/launch/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace engine::launch {
namespace {

TEST(MemberLog, NamesTheMemberWhereThereAreSeveral) {
  testing::internal::CaptureStderr();
  MemberLog({.rank = 1, .world_size = 2}, LogLevel::kInfo)(LogLevel::kWarning, "hello {}");
  MemberLog({}, LogLevel::kInfo)(LogLevel::kInfo, "alone");
  MemberLog({}, LogLevel::kInfo)(LogLevel::kDebug, "not shown");
  MemberLog({.rank = 1, .servers = 2, .is_server = 1})(LogLevel::kError, "lost");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("^[0-9:.]+ W \\[rank 1\\] hello [{][}]\n"
                                     "[0-9:.]+ I alone\n[0-9:.]+ E \\[server 1\\] lost\n$"));
}

TEST(Printable, LetsNoTextControlATerminal) {
  EXPECT_EQ(Printable(std::string_view("a\x1b[2J\x07\x7f\0 b\tc\n\xc3\xa4\xc2\x9b\xc2\xb0", 19)),
            "a\\x1b[2J\\x07\\x7f\\x00 b\tc\n\xc3\xa4\\xc2\\x9b\xc2\xb0");
}

}  // namespace
}  // namespace engine::launch
