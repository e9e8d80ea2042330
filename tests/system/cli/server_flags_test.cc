// What the command line says of servers: usage, runs that have none, servers that find no run.

#include <filesystem>

#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::HasSubstr;

class ServerFlags : public CliTest {};

TEST_F(ServerFlags, HelpNamesThem) {
  const Outcome run = Run({"run", "--help"});
  for (const char* flag : {"--servers", "--serve-at", "--key-file", "--restarts"}) {
    EXPECT_THAT(run.out, HasSubstr(flag));
  }
  const Outcome serve = Run({"serve", "--help"});
  for (const char* flag : {"--index", "--key-file", "--plugin-path", "--wait"}) {
    EXPECT_THAT(serve.out, HasSubstr(flag));
  }
}

TEST_F(ServerFlags, ConflictsAreUsageErrors) {
  EXPECT_THAT(Refusal(RunConfig({"--restarts", "2"}), 2), HasSubstr("add -n N"));
  EXPECT_THAT(Refusal(RunConfig({"-n", "2", "--threads", "--restarts", "2"}), 2),
              HasSubstr("--threads"));
  EXPECT_THAT(Refusal(RunConfig({"--serve-at", "127.0.0.1:29400"}), 2),
              HasSubstr("add --servers N"));
  EXPECT_THAT(Refusal(RunConfig({"--servers", "1", "--serve-at", "0.0.0.0:29400"}), 2),
              HasSubstr("--key-file FILE"));
  EXPECT_THAT(Refusal(RunConfig({"--servers", "1", "--key-file", "k"}), 2),
              HasSubstr("add --serve-at"));
  EXPECT_EQ(Run({"serve", "127.0.0.1:29400"}).exit_code, 2);
  EXPECT_THAT(Refusal(Run({"serve", "nowhere", "--index", "0"}), 2), HasSubstr("has no port"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "k"));
}

TEST_F(ServerFlags, ACommunicatorWithoutServersIsNamed) {
  const Outcome outcome = RunConfig(
      {"-q", "-n", "1", "--servers", "2", "--plugins", "null", "--set", "train.steps=100000000"});
  EXPECT_EQ(outcome.exit_code, 78) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("communicator 'null' has no servers: drop --servers or choose "
                                     "one that has, such as zmq_ps"));
  EXPECT_THAT(outcome.err, ::testing::StartsWith("engine: server "));
}

TEST_F(ServerFlags, AServerWithoutARunGivesUp) {
  const Outcome outcome = Run({"serve", "127.0.0.1:9", "--index", "0", "--wait", "1"});
  EXPECT_THAT(Refusal(outcome, 201), HasSubstr("found no run at 127.0.0.1:9"));
}

TEST_F(ServerFlags, AKeyFileThatIsMissingIsNamed) {
  const Outcome outcome =
      Run({"serve", "127.0.0.1:9", "--index", "0", "--key-file", "no.key", "--wait", "1"});
  EXPECT_THAT(Refusal(outcome, 66), HasSubstr("key file no.key"));
}

}  // namespace
}  // namespace engine::testing
