// What a user can get wrong: one sentence, the exit code of the contract, and no file overwritten.

#include <sys/wait.h>

#include <cstdlib>

#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"
#include "tests/unit/data/idx_bytes.h"

namespace engine::test {
namespace {

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
    const std::string sentence = Refusal(Run("run mnist.pbtxt -n 2 --force"), exit_code);
    EXPECT_EQ(Read("model.safetensors"), "an earlier model");
    EXPECT_EQ(Read("run.jsonl"), "earlier metrics\n");
    return sentence;
  }
};

TEST_F(BadInput, TheFilesThatTheOtherTestsBreakAreGood) {
  Output(Run("run mnist.pbtxt -n 2 --force"));
  EXPECT_NE(Read("model.safetensors"), "an earlier model");
  EXPECT_THAT(Read("run.jsonl"), StartsWith("{\"event\":\"step\""));
}

TEST_F(BadInput, WrongIdx) {
  const std::string images = IdxImages(20), packed = Gzip(images);
  for (const std::string& wrong : {packed.substr(0, packed.size() / 2), IdxLabels(20)}) {
    folder_.Write("images.idx", wrong);
    EXPECT_THAT(RefusedData(65), HasSubstr("images.idx")) << wrong.size() << " bytes";
  }
  folder_.Write("images.idx", images);
  folder_.Write("labels.idx", IdxLabels(19));
  EXPECT_THAT(RefusedData(65), AllOf(HasSubstr("19"), HasSubstr("20")));
  std::filesystem::remove(folder_ / "labels.idx");
  EXPECT_THAT(RefusedData(66), HasSubstr("labels.idx"));
}

TEST_F(BadInput, UnknownKeyIsFoundByLineAndColumn) {
  folder_.Write("wrong.pbtxt", std::string(kConfig) + "output { metrix: \"a\" }\n");
  for (const std::string command : {"run", "config check", "config print"}) {
    const Outcome outcome = Run(command + " wrong.pbtxt");
    EXPECT_EQ(outcome.exit_code, 78);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(StartsWith("engine: wrong.pbtxt:6:10: unknown key 'metrix'"),
                                   HasSubstr("did you mean 'metrics'?")));
  }
}

TEST_F(BadInput, WrongConfigurationsAreRefused) {
  folder_.Write("text.txt", std::string(1000, 'x'));
  ExpectRefused({
      {"run nothing.pbtxt", 66, HasSubstr("nothing.pbtxt")},
      {"run run.pbtxt --set train.stepps=3", 78, HasSubstr("did you mean 'steps'?")},
      {"run run.pbtxt --set train.steps=many", 78, HasSubstr("--set train.steps=many")},
      {"run run.pbtxt --set train.\x1b[2J=1", 78, HasSubstr("train.\\x1b[2J")},
      {"run run.pbtxt --set sgd.momentum=2", 78, HasSubstr("momentum")},
      {"run run.pbtxt --set model.gpt.width=16", 78, HasSubstr("model.gpt")},
      {"run run.pbtxt --set data.text.path=text.txt --set model.gpt.width=15", 78,
       HasSubstr("the width 15 must be a multiple of the number of heads, 4")},
  });
}

TEST_F(BadInput, WrongPluginsAreRefused) {
  std::string few = kConfig;
  few.erase(few.find(", \"sgd\""), std::string(", \"sgd\"").size());
  folder_.Write("few.pbtxt", few);
  folder_.Write("folder/libengine_broken.so", "no library");
  ExpectRefused({
      {"run run.pbtxt --plugins gluu", 79, HasSubstr("gluu")},
      {"run run.pbtxt --plugins tcp,null", 79,
       AllOf(HasSubstr("'tcp' and 'null'"), HasSubstr("communicator"))},
      {"run few.pbtxt", 79, HasSubstr("optimizer")},
      {"run run.pbtxt --plugin-path folder --plugins broken", 79, HasSubstr("libengine_broken.so")},
      {"plugins gluu", 79, HasSubstr("gluu")},
      {"run run.pbtxt --plugin-path gone", 78, HasSubstr("--plugin-path: there is no folder gone")},
      {"plugins --plugin-path run.pbtxt", 78, HasSubstr("there is no folder run.pbtxt")},
      {"plugins --check folder/libengine_broken.so", 79, HasSubstr("no ELF file")},
  });
}

TEST_F(BadInput, NewPluginsNeedANameAndAKind) {
  std::filesystem::create_directory(folder_ / "folder");
  ExpectRefused({
      {"plugins new folder --kind hook", 2, HasSubstr("folder is there already")},
      {"plugins new Mine --kind hook", 2, HasSubstr("[a-z][a-z0-9_]*")},
      {"plugins new " + std::string(32, 'a') + " --kind hook", 2, HasSubstr("at most 31")},
      {"plugins new mine --kind hok", 2, HasSubstr("did you mean 'hook'?")},
      {"plugins new none/mine --kind hook", 2, HasSubstr("no name")},
      {"plugins new train --kind hook", 2, HasSubstr("a key of the configuration")},
  });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "mine"));
}

TEST_F(BadInput, UsageIsExplained) {
  for (const char* words :
       {"", "rum", "run -n 0", "run -n two", "run --no-such-flag", "run --launcher smoke",
        "run a b", "config", "sample", "eval x --bytes 1"}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.exit_code, 2) << words;
    EXPECT_THAT(outcome.err, HasSubstr("--help")) << words;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(BadInput, RanksThatDisagreeWithTheLauncher) {
  const Variables torchrun = TorchrunRank(0, 2, 1);
  EXPECT_THAT(Refusal(Run("run run.pbtxt -n 3", torchrun), 2),
              AllOf(HasSubstr("-n 3"), HasSubstr("torchrun")));
  Output(Run("run run.pbtxt -n 2 --launcher none", torchrun));
}

TEST_F(BadInput, OutputsThatCannotBeWrittenAreFoundBeforeTraining) {
  folder_.Write("file", "");
  // Nothing, not even root, can make files in /proc.
  for (const std::string path : {"file/model", "/proc/model", "/proc/none/model", "."}) {
    for (const std::string output : {"output.checkpoint", "output.metrics"}) {
      ExpectRefused({{"run run.pbtxt -n 2 --set " + output + "=" + path, 203, HasSubstr(output)}});
    }
  }
  const std::string checkpoint = "run run.pbtxt -n 2 --set output.checkpoint=";
  ExpectRefused({{checkpoint + "/dev/null", 203, HasSubstr("it is a device or a pipe")},
                 // The name of the temporary file is longer, and too long.
                 {checkpoint + std::string(250, 'l'), 203,
                  AllOf(HasSubstr("output.checkpoint"), HasSubstr("File name too long"))}});
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

// config check makes everything up to the first step, so it finds what a run would refuse, in its words.
TEST_F(BadInput, ConfigCheckRefusesWhatARunRefuses) {
  std::filesystem::remove(folder_ / "model.safetensors");
  const auto net = [&](const std::string& layers, const std::string& shape = "8") {
    folder_.Write("net.pbtxt", "model { net { " + layers + " } }\n" +
                                   "data { synthetic { shape: " + shape + " classes: 4 } }\n" +
                                   "train { steps: 6 global_batch: 8 }\n"
                                   "plugins: [\"tcp\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n");
    return "net.pbtxt";
  };
  const auto expect = [&](const std::string& words, int exit_code, const std::string& sentence) {
    SCOPED_TRACE(words);
    const std::string checked = Refusal(Run("config check " + words), exit_code);
    EXPECT_THAT(checked, HasSubstr(sentence));
    EXPECT_EQ(Refusal(Run("run " + words), exit_code), checked);
  };
  expect(net("layer { linear { units: 11 } }"), 78, "end with linear { units: 4 }");
  expect(net("layer { linear { units: 4 } }", "[2, 3, 8]"), 78, "put flatten {} before");
  expect(net("layer { name: \"a\" linear { units: 4 } } layer { name: \"a\" linear { units: 4 } }"),
         78, "'a'");
  expect("run.pbtxt --set model.frozen=nowhere", 78, "nowhere");
  expect("run.pbtxt --set output.best_checkpoint=b.st --set data.synthetic.eval_samples=0", 78,
         "the data has no held-out samples");
  expect("run.pbtxt --set output.best_checkpoint=b.st --set train.early_stopping.metric=auc", 78,
         "no 'auc'; they give loss, accuracy");
  std::filesystem::remove(folder_ / "labels.idx");
  expect("mnist.pbtxt", 66, "data.mnist.labels (mnist.pbtxt:2): ");
}

TEST_F(BadInput, UnknownSubcommandsAreNamed) {
  ExpectRefused({{"predikt x", 2, HasSubstr("unknown subcommand 'predikt' of 'engine'")},
                 {"evl model.safetensors", 2, HasSubstr("did you mean 'eval'?")},
                 {"config chek", 2,
                  HasSubstr("unknown subcommand 'chek' of 'config'; did you mean 'check'?")}});
}

TEST_F(BadInput, ManyPluginsAreRefusedAtOnce) {
  std::string many = kConfig;
  for (int i = 0; i < 100000; ++i) many += "plugins: \"sgd\"\n";
  folder_.Write("many.pbtxt", many);
  const Outcome outcome = Run("config check many.pbtxt");
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.err, HasSubstr("names more than 256 plugins"));
}

TEST_F(BadInput, AFailedRunLeavesTheOldCheckpoint) {
  const std::string run =
      "run run.pbtxt -n 2 -q --force --set output.checkpoint=model.safetensors --set ";
  ExpectRefused({{run + "output.metrics=/dev/full", 203,
                  AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))},
                 {run + "train.learning_rate.base=1e38", 78,
                  AllOf(HasSubstr("training diverged"), HasSubstr("train.learning_rate.base"))}});
  EXPECT_EQ(Read("model.safetensors"), "an earlier model");
}

class BadCheckpoint : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    TrainOnText("model.safetensors");
    bytes_ = Read("model.safetensors");
  }

  void ExpectRefusedFile(const std::string& file, int exit_code, const std::string& reason) const {
    for (const std::string command : {"eval ", "sample "}) {
      ExpectRefused({{command + file, exit_code, AllOf(HasSubstr(file), HasSubstr(reason))}});
    }
  }

  std::string bytes_;
};

TEST_F(BadCheckpoint, TheFileThatTheOtherTestsBreakIsGood) {
  Output(Run("eval model.safetensors"));
  const std::string sample = Output(Run("sample model.safetensors --bytes 5 --prompt abc"));
  EXPECT_THAT(sample, StartsWith("abc"));
  EXPECT_EQ(sample.size(), 3u + 5u + 1u);
}

TEST_F(BadCheckpoint, DamagedMissingOrOfAnotherProgram) {
  folder_.Write("cut.safetensors", bytes_.substr(0, bytes_.size() - 1));
  ExpectRefusedFile("cut.safetensors", 65, "");
  bytes_[bytes_.size() - 5] ^= 1;
  folder_.Write("bit.safetensors", bytes_);
  ExpectRefusedFile("bit.safetensors", 65, "digest");
  ExpectRefusedFile("run.pbtxt", 65, "");
  ExpectRefusedFile("nothing.safetensors", 66, "");
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  folder_.Write("other.safetensors", length + header + std::string(4, '\0'));
  ExpectRefusedFile("other.safetensors", 65, "not a checkpoint of this engine");
}

TEST_F(BadCheckpoint, MissingText) {
  std::filesystem::remove(folder_ / "text.txt");
  ExpectRefused({{"eval model.safetensors", 66, HasSubstr("text.txt")}});
  Output(Run("sample model.safetensors --bytes 1"));
}

TEST_F(BadInput, OutputThatIsLostIsAnError) {
  const std::string command = "cd '" + folder_.path().native() +
                              "' && " ENGINE_TEST_BINARY
                              " config print run.pbtxt >/dev/full 2>lost.txt";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 203);
  EXPECT_EQ(Read("lost.txt"), "engine: cannot write to standard output: No space left on device\n");
}

}  // namespace
}  // namespace engine::test
