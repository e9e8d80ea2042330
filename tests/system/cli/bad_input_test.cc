// What a user can get wrong: one sentence, the exit code of the contract, and no file overwritten.

#include "tests/system/cli/cli_test.h"
#include "tests/unit/data/idx_bytes.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class BadInput : public CliTest {
 protected:
  // A configuration that reads images.idx and labels.idx, and results of an earlier run.
  void SetUp() override {
    CliTest::SetUp();
    folder_.Write("mnist.pbtxt",
                  "model { mlp { hidden: [4] } }\n"
                  "data { mnist { images: \"images.idx\" labels: \"labels.idx\" } }\n"
                  "train { steps: 2 global_batch: 4 }\n"
                  "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"
                  "output { checkpoint: \"model.safetensors\" metrics: \"run.jsonl\" }\n");
    folder_.Write("model.safetensors", "an earlier model");
    folder_.Write("run.jsonl", "earlier metrics\n");
    folder_.Write("images.idx", IdxImages(20));
    folder_.Write("labels.idx", IdxLabels(20));
  }

  std::string RefusedData(int exit_code) {
    const std::string sentence = Refusal(Run({"run", "mnist.pbtxt", "-n", "2"}), exit_code);
    ExpectUntouched();
    return sentence;
  }
  void ExpectUntouched() const {
    EXPECT_EQ(Read("model.safetensors"), "an earlier model");
    EXPECT_EQ(Read("run.jsonl"), "earlier metrics\n");
  }
};

TEST_F(BadInput, TheFilesThatTheOtherTestsBreakAreGood) {
  const Outcome outcome = Run({"run", "mnist.pbtxt", "-n", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(Read("model.safetensors"), "an earlier model");
  EXPECT_THAT(Read("run.jsonl"), StartsWith("{\"event\":\"step\""));
}

TEST_F(BadInput, TruncatedIdx) {
  const std::string images = IdxImages(20);
  folder_.Write("images.idx", images.substr(0, images.size() - 1));
  EXPECT_THAT(RefusedData(65), HasSubstr("images.idx"));
  const std::string packed = Gzip(images);
  folder_.Write("images.idx", packed.substr(0, packed.size() / 2));
  EXPECT_THAT(RefusedData(65), HasSubstr("images.idx"));
  folder_.Write("images.idx", "");
  EXPECT_THAT(RefusedData(65), HasSubstr("images.idx"));
}

TEST_F(BadInput, WrongIdx) {
  folder_.Write("images.idx", IdxLabels(20));
  EXPECT_THAT(RefusedData(65), HasSubstr("images.idx"));
  folder_.Write("images.idx", "just some text, which is no image");
  EXPECT_THAT(RefusedData(65), HasSubstr("images.idx"));
  folder_.Write("images.idx", IdxImages(20));
  folder_.Write("labels.idx", IdxLabels(19));
  EXPECT_THAT(RefusedData(65), AllOf(HasSubstr("19"), HasSubstr("20")));
}

TEST_F(BadInput, MissingData) {
  std::filesystem::remove(folder_ / "labels.idx");
  EXPECT_THAT(RefusedData(66), HasSubstr("labels.idx"));
}

TEST_F(BadInput, MissingConfiguration) {
  EXPECT_THAT(Refusal(Run({"run", "nothing.pbtxt"}), 66), HasSubstr("nothing.pbtxt"));
}

TEST_F(BadInput, UnknownKeyIsFoundByLineAndColumn) {
  folder_.Write("wrong.pbtxt", std::string(CliTest::kConfig) + "output { metrix: \"a\" }\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run"}, {"config", "check"}, {"config", "print"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("wrong.pbtxt");
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 78);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("engine: wrong.pbtxt:6:10: unknown key 'metrix'"));
    EXPECT_THAT(outcome.err, HasSubstr("did you mean 'metrics'?"));
  }
}

TEST_F(BadInput, WrongOverrides) {
  const auto refusal = [&](const char* set, int exit_code) {
    return Refusal(RunConfig({"--set", set}), exit_code);
  };
  EXPECT_THAT(refusal("train.stepps=3", 78), HasSubstr("did you mean 'steps'?"));
  EXPECT_THAT(refusal("train.steps=many", 78), HasSubstr("--set train.steps=many"));
  EXPECT_THAT(refusal("train.steps=0", 78), HasSubstr("--set train.steps=0"));
  EXPECT_THAT(refusal("train", 78), HasSubstr("--set train"));
  EXPECT_THAT(refusal("sgd.momentum=2", 78), HasSubstr("momentum"));
}

TEST_F(BadInput, AModelThatDoesNotFitItsData) {
  folder_.Write("text.txt", std::string(1000, 'x'));
  EXPECT_THAT(Refusal(RunConfig({"--set", "model.gpt.width=16"}), 78), HasSubstr("model.gpt"));
  EXPECT_THAT(
      Refusal(RunConfig({"--set", "data.text.path=text.txt", "--set", "model.gpt.width=15"}), 78),
      HasSubstr("the width 15 must be a multiple of the number of heads, 4"));
}

TEST_F(BadInput, Plugins) {
  EXPECT_THAT(Refusal(RunConfig({"--plugins", "gluu"}), 79), HasSubstr("gluu"));
  EXPECT_THAT(Refusal(RunConfig({"--plugins", "tcp,null"}), 79),
              AllOf(HasSubstr("'tcp' and 'null'"), HasSubstr("communicator")));
  folder_.Write("few.pbtxt",
                "model { mlp { hidden: [16] } } data { synthetic {} }\n"
                "train { steps: 1 global_batch: 8 }\n"
                "plugins: [\"tcp\", \"fifo_sched\", \"cpu_ops\"]\n");
  EXPECT_THAT(Refusal(Run({"run", "few.pbtxt"}), 79), HasSubstr("optimizer"));
  folder_.Write("folder/libengine_broken.so", "no library");
  EXPECT_THAT(Refusal(RunConfig({"--plugin-path", "folder", "--plugins", "broken"}), 79),
              HasSubstr("libengine_broken.so"));
  EXPECT_THAT(Refusal(Run({"plugins", "gluu"}), 79), HasSubstr("gluu"));
}

TEST_F(BadInput, UsageIsExplained) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{},
                                                    {"rum"},
                                                    {"run", "-n", "0"},
                                                    {"run", "-n", "two"},
                                                    {"run", "--no-such-flag"},
                                                    {"run", "--launcher", "smoke"},
                                                    {"run", "a", "b"},
                                                    {"config"},
                                                    {"sample"},
                                                    {"eval", "x", "--bytes", "1"}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr("--help")) << ::testing::PrintToString(arguments);
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(BadInput, RanksThatDisagreeWithTheLauncher) {
  const std::map<std::string, std::string> torchrun = {{"RANK", "0"},
                                                       {"WORLD_SIZE", "2"},
                                                       {"LOCAL_RANK", "0"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", "1"}};
  EXPECT_THAT(Refusal(Run({"run", "run.pbtxt", "-n", "3"}, torchrun), 2),
              AllOf(HasSubstr("-n 3"), HasSubstr("torchrun")));
  EXPECT_EQ(Run({"run", "run.pbtxt", "-n", "2", "--launcher", "none"}, torchrun).exit_code, 0);
}

TEST_F(BadInput, OutputsThatCannotBeWrittenAreFoundBeforeTraining) {
  folder_.Write("file", "");
  const auto refusal = [&](const std::string& set) {
    return Refusal(RunConfig({"-n", "2", "--set", set}), 203);
  };
  // Nothing, not even root, can make files in /proc.
  for (const char* path : {"file/model", "/proc/model", "/proc/none/model", "."}) {
    EXPECT_THAT(refusal(std::string("output.checkpoint=") + path), HasSubstr("output.checkpoint"));
    EXPECT_THAT(refusal(std::string("output.metrics=") + path), HasSubstr("output.metrics"));
  }
  EXPECT_THAT(refusal("output.checkpoint=/dev/null"), HasSubstr("it is no regular file"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(BadInput, AFullDiskEndsTheRunAndLeavesTheOldCheckpoint) {
  folder_.Write("model.safetensors", "an earlier model");
  const Outcome outcome = RunConfig({"-n", "2", "-q", "--set", "output.metrics=/dev/full", "--set",
                                     "output.checkpoint=model.safetensors"});
  EXPECT_THAT(Refusal(outcome, 203), AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
  EXPECT_EQ(Read("model.safetensors"), "an earlier model");
}

TEST_F(BadInput, ADivergedRunEndsAndLeavesTheOldCheckpoint) {
  const Outcome outcome = RunConfig({"-n", "2", "-q", "--set", "train.learning_rate.base=1e38",
                                     "--set", "output.checkpoint=model.safetensors"});
  EXPECT_THAT(Refusal(outcome, 78),
              AllOf(HasSubstr("training diverged"), HasSubstr("train.learning_rate.base")));
  EXPECT_EQ(Read("model.safetensors"), "an earlier model");
}

class BadCheckpoint : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    folder_.Write("text.txt", std::string(400, 'x'));
    const Outcome outcome = RunConfig(
        {"-q", "--set", "output.checkpoint=model.safetensors", "--set", "data.text.path=text.txt",
         "--set", "data.text.context=8", "--set", "model.gpt.width=16", "--set",
         "model.gpt.layers=1", "--set", "train.evaluate_every=-1"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    bytes_ = Read("model.safetensors");
  }

  void ExpectRefused(const std::string& file, int exit_code, const std::string& reason) {
    for (const char* command : {"eval", "sample"}) {
      EXPECT_THAT(Refusal(Run({command, file}), exit_code),
                  AllOf(HasSubstr(file), HasSubstr(reason)))
          << command;
    }
  }

  std::string bytes_;
};

TEST_F(BadCheckpoint, TheFileThatTheOtherTestsBreakIsGood) {
  EXPECT_EQ(Run({"eval", "model.safetensors"}).exit_code, 0);
  const Outcome sample = Run({"sample", "model.safetensors", "--bytes", "5", "--prompt", "abc"});
  EXPECT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_THAT(sample.out, StartsWith("abc"));
  EXPECT_EQ(sample.out.size(), 3u + 5u + 1u);
}

TEST_F(BadCheckpoint, TruncatedAnywhere) {
  for (const size_t size :
       {size_t{0}, size_t{7}, size_t{100}, bytes_.size() / 2, bytes_.size() - 1}) {
    folder_.Write("cut.safetensors", bytes_.substr(0, size));
    ExpectRefused("cut.safetensors", 65, "");
  }
}

TEST_F(BadCheckpoint, AFlippedBitIsFoundByTheDigest) {
  bytes_[bytes_.size() - 5] ^= 1;
  folder_.Write("bit.safetensors", bytes_);
  ExpectRefused("bit.safetensors", 65, "digest");
}

TEST_F(BadCheckpoint, NoSafetensorsAtAll) {
  ExpectRefused("run.pbtxt", 65, "");
  ExpectRefused("nothing.safetensors", 66, "");
}

TEST_F(BadCheckpoint, SafetensorsOfAnotherProgram) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  folder_.Write("other.safetensors", bytes + header + std::string(4, '\0'));
  ExpectRefused("other.safetensors", 65, "not a checkpoint of this engine");
}

TEST_F(BadCheckpoint, MissingText) {
  std::filesystem::remove(folder_ / "text.txt");
  EXPECT_THAT(Refusal(Run({"eval", "model.safetensors"}), 66), HasSubstr("text.txt"));
  EXPECT_EQ(Run({"sample", "model.safetensors", "--bytes", "1"}).exit_code, 0);
}

}  // namespace
}  // namespace engine::testing
