#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/machine/machine.h"
#include "bench/training/engine_run.h"

namespace engine::bench {
namespace {

using ::testing::Contains;
using ::testing::Not;

TrainRequest Request() {
  TrainRequest request;
  request.config_file = "x.pbtxt";
  request.overrides = {"train.global_batch=8"};
  request.plugin_folders = {"common"};
  request.b = {{"tcp", "./libmine.so"}, {"tcp.io_threads=1"}, {"of_b"}};
  request.ranks = 3;
  return request;
}

TEST(RunArguments, HandOnTheFlagsOfASide) {
  const TrainRequest request = Request();
  const std::string line = ShellWords(RunArguments(request, request.b, 0, 60, false));
  EXPECT_EQ(line,
            "run x.pbtxt --quiet --launcher none -n 3 --plugin-path of_b --plugin-path common "
            "--plugins tcp,./libmine.so --set train.global_batch=8 --set tcp.io_threads=1 "
            "--set train.steps=60 --set train.evaluate_every=-1 --set train.checkpoint_every=0 "
            "--set output.checkpoint= --set output.sample_bytes=0");
}

TEST(RunArguments, OfASideWithoutFlags) {
  const TrainRequest request = Request();
  const auto arguments = RunArguments(request, request.a, 0, 60, false);
  EXPECT_THAT(arguments, Not(Contains("--plugins")));
  EXPECT_THAT(arguments, Not(Contains("of_b")));
}

TEST(RunArguments, BehindALinkTheRankComesFromTheEnvironment) {
  const TrainRequest request = Request();
  const auto arguments = RunArguments(request, request.a, 0, 60, true);
  EXPECT_THAT(arguments, Contains("torchrun"));
  EXPECT_THAT(arguments, Not(Contains("-n")));
}

TEST(RunArguments, WithServers) {
  const TrainRequest request = Request();
  EXPECT_EQ(ShellWords(RunArguments(request, request.a, 2, 60, true))
                .find("run x.pbtxt --quiet --launcher torchrun --servers 2 --plugin-path common"),
            0u);
  EXPECT_THAT(RunArguments(request, request.a, 0, 60, true), Not(Contains("--servers")));
}

TEST(ShellWords, CanBeTakenBack) {
  EXPECT_EQ(ShellWords({"a", "b c", "it's", ""}), "a 'b c' 'it'\\''s' ''");
}

}  // namespace
}  // namespace engine::bench
