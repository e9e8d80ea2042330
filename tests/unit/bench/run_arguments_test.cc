#include <gtest/gtest.h>

#include "bench/machine/machine.h"
#include "bench/training/engine_run.h"
#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

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

TEST(RunArguments, BehindALinkTheRankComesFromTheEnvironment) {
  const TrainRequest request = Request();
  const auto line = [&](int servers) {
    return ShellWords(RunArguments(request, request.a, servers, 60, true));  // a side without flags
  };
  EXPECT_THAT(line(0), StartsWith("run x.pbtxt --quiet --launcher torchrun --plugin-path common "
                                  "--set train.global_batch=8 "));
  EXPECT_THAT(line(2), StartsWith("run x.pbtxt --quiet --launcher torchrun --servers 2 "));
}

TEST(ShellWords, CanBeTakenBack) {
  EXPECT_EQ(ShellWords({"a", "b c", "it's", ""}), "a 'b c' 'it'\\''s' ''");
}

}  // namespace
}  // namespace engine::bench
