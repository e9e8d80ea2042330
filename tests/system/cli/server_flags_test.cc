// What the command line says of servers: usage, runs that have none, servers that find no run.

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using ServerFlags = CliTest;

TEST_F(ServerFlags, WhatCannotBeServedIsRefused) {
  EXPECT_EQ(Run("serve 127.0.0.1:29400").exit_code, 2);
  ExpectRefused({
      {"run run.pbtxt --restarts 2", 2, HasSubstr("add -n N")},
      {"run run.pbtxt -n 2 --threads --restarts 2", 2, HasSubstr("--threads")},
      {"run run.pbtxt --serve-at 127.0.0.1:29400", 2, HasSubstr("add --servers N")},
      {"run run.pbtxt --servers 1 --serve-at 0.0.0.0:29400", 79, HasSubstr("--key-file FILE")},
      {"run run.pbtxt --servers 1 --key-file k", 2, HasSubstr("add --serve-at")},
      {"serve nowhere --index 0", 2, HasSubstr("expected HOST:PORT")},
      {"serve 127.0.0.1:9 --index 0 --wait 1", 201, HasSubstr("found no run at 127.0.0.1:9")},
      {"serve 127.0.0.1:9 --index 0 --key-file no.key", 66, HasSubstr("key file no.key")},
  });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "k"));
}

TEST_F(ServerFlags, ACommunicatorWithoutServersIsNamed) {
  const Outcome outcome =
      RunConfig("-q -n 1 --servers 2 --plugins null --set train.steps=100000000");
  EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      ::testing::MatchesRegex("engine: server .*communicator 'null' has no servers: drop --servers "
                              "or choose one that has, such as zmq_ps.*\n"));
}

}  // namespace
}  // namespace engine::test
