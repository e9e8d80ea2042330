#include "app/launch/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "kit/unique_fd.h"

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

TEST(ErrorLines, WhatNobodyReadsIsDroppedAndCounted) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const kit::UniqueFd reader(ends[0]), writer(ends[1]), before(dup(STDERR_FILENO));
  while (write(writer.get(), "x", 1) == 1) {
  }
  dup2(writer.get(), STDERR_FILENO);
  ErrorLines lines;
  for (const char* line : {"a", "b"}) lines.Write(line);
  std::string bytes(1 << 20, ' ');
  EXPECT_GT(read(reader.get(), bytes.data(), bytes.size()), 0);
  for (const char* line : {"c", "d"}) lines.Write(line);
  dup2(before.get(), STDERR_FILENO);
  bytes.resize(std::max<ssize_t>(read(reader.get(), bytes.data(), bytes.size()), 0));
  EXPECT_EQ(bytes, "engine: 2 lines were dropped: nobody read\nc\nd\n");
}

TEST(Printable, LetsNoTextControlATerminal) {
  EXPECT_EQ(Printable(std::string_view("a\x1b[2J\x07\x7f\0 b\tc\n\xc3\xa4\xc2\x9b\xc2\xb0", 19)),
            "a\\x1b[2J\\x07\\x7f\\x00 b\tc\n\xc3\xa4\\xc2\\x9b\xc2\xb0");
}

}  // namespace
}  // namespace engine::launch
