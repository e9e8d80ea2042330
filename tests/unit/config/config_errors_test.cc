#include "tests/support/matchers.h"
#include "tests/unit/config/config_fixture.h"

namespace engine::config {
namespace {

TEST_F(ConfigTest, ErrorsShowTheLineAndACaret) {
  EXPECT_EQ(Refusal("seed: 1\n\ttrain { stepps: 3 }\n" + std::string(kPlugins)),
            "run.pbtxt:2:10: unknown key 'stepps' in 'train'; did you mean 'steps'?\n"
            "  \ttrain { stepps: 3 }\n"
            "  \t        ^");
}

TEST_F(ConfigTest, UnknownKeys) {
  EXPECT_EQ(Sentence("sead: 1\n" + Good()),
            "run.pbtxt:1:1: unknown key 'sead'; did you mean 'seed'?");
  EXPECT_EQ(Sentence(Good() + "tets_opt { }\n"),
            "run.pbtxt:7:1: unknown key 'tets_opt'; did you mean 'test_opt'?");
  EXPECT_EQ(Sentence(Good() + "nccl { }\n"),
            "run.pbtxt:7:1: unknown key 'nccl': neither a key of the configuration nor a plugin "
            "that was found");
  EXPECT_EQ(Sentence(Good() + "test_sched { credits: 2 }\n"),
            "run.pbtxt:7:14: unknown key 'credits' in 'test_sched'; did you mean 'credit'?");
  EXPECT_EQ(Sentence(Good() + "test_comm { x: 2 }\n"),
            "run.pbtxt:7:13: unknown key 'x' in 'test_comm', which has no keys");
  EXPECT_EQ(Sentence(Good() + "output { zzz: 1 }"),
            "run.pbtxt:7:10: unknown key 'zzz' in 'output'; it has: checkpoint, keep_checkpoints, "
            "best_checkpoint, metrics, tensorboard, sample_bytes, trace, trace_spans");
  EXPECT_EQ(Sentence(Net("layer { linaer { units: 3 } }")),
            "run.pbtxt:2:9: unknown key 'linaer' in 'layer'; did you mean 'linear'?");
  EXPECT_EQ(Sentence(Net("layer { convolution3d { } }")),
            "run.pbtxt:2:9: unknown key 'convolution3d' in 'layer': neither a key of a layer nor "
            "an op of a plugin that was found");
  EXPECT_EQ(Sentence(Net("layer { linear { unit: 3 } }")),
            "run.pbtxt:2:18: unknown key 'unit' in 'linear'; did you mean 'units'?");
}

TEST_F(ConfigTest, WrongTypes) {
  EXPECT_EQ(Sentence("seed: \"x\"\n"), "run.pbtxt:1:7: expected an integer, found \"x\"");
  EXPECT_EQ(Sentence("train { steps: 1.5 }\n"), "run.pbtxt:1:16: expected an integer, found 1.5");
  EXPECT_EQ(Sentence("train { steps: 99999999999999999999 }\n"),
            "run.pbtxt:1:16: 99999999999999999999 is out of range");
  EXPECT_EQ(Sentence("train { learning_rate { base: fast } }\n"),
            "run.pbtxt:1:31: expected a number, found fast");
  EXPECT_EQ(Sentence("train { learning_rate { schedule: COS } }\n"),
            "run.pbtxt:1:35: 'COS' is none of CONSTANT, COSINE");
  EXPECT_EQ(Sentence("data {\n  shuffle: maybe }\n"),
            "run.pbtxt:2:12: 'shuffle' is true or false, not 'maybe'");
  EXPECT_EQ(Sentence("plugins: tcp\n"), "run.pbtxt:1:10: expected text in quotes, found tcp");
  EXPECT_EQ(Sentence(Good() + "test_sched { merge: 7 }"), "run.pbtxt:7:21: 7 is out of range");
  EXPECT_EQ(Sentence(Good() + "test_sched { order: ready }"),
            "run.pbtxt:7:21: expected text in quotes, found ready");
}

TEST_F(ConfigTest, WrongSyntax) {
  EXPECT_EQ(Sentence("seed: 1 seed: 2\n"), "run.pbtxt:1:9: 'seed' is given twice");
  EXPECT_EQ(Sentence("model { mlp { } gpt { } }"),
            "run.pbtxt:1:17: 'gpt' and 'mlp' exclude each other; keep one");
  EXPECT_EQ(Sentence("train { steps: 1"),
            "run.pbtxt:1:17: expected a key or a word, found the end");
  EXPECT_EQ(Sentence("seed 1"), "run.pbtxt:1:6: expected \":\", found \"1\"");
  EXPECT_EQ(Sentence("output { checkpoint: \"a\n\" }"),
            "run.pbtxt:1:24: string literals cannot cross line boundaries");
  EXPECT_EQ(Sentence("seed: 1\n\x01\n"),
            "run.pbtxt:2:1: invalid control characters encountered in text");
  EXPECT_EQ(Sentence(std::string("seed: 1\n \0 ", 11)),
            "run.pbtxt:2:2: a NUL byte; is this a text file?");
  std::string deep = "model { net { ";
  for (int i = 0; i < 5000; ++i) deep += "layer { residual { ";
  EXPECT_THAT(Sentence(deep), EndsWith("blocks are nested too deeply"));
  EXPECT_EQ(Sentence(std::string((16 << 20) + 1, ' ')),
            "run.pbtxt: 16777217 bytes are too many for a configuration");
}

TEST_F(ConfigTest, MissingParts) {
  EXPECT_EQ(Sentence(std::string(kRun) + kPlugins),
            "run.pbtxt:1:1: the configuration needs 'model'");
  EXPECT_EQ(Sentence(std::string(kModel) + kRun),
            "run.pbtxt:1:1: the configuration needs 'plugins'");
  EXPECT_EQ(Sentence("model { }\n" + std::string(kRun) + kPlugins),
            "run.pbtxt:1:1: 'model' needs one of: cnn, gpt, mlp, net, resnet");
  const auto with_data = [&](const std::string& data) {
    return Sentence(kModel + data + "\ntrain { steps: 1 global_batch: 1 }\n" + kPlugins);
  };
  EXPECT_EQ(with_data("data { shuffle: true }"),
            "run.pbtxt:2:1: 'data' needs one of: cifar10, mnist, synthetic, text, tokens");
  for (const char* plugin : {"text", "cifar10", "tokens"}) {
    EXPECT_EQ(with_data(std::string("data { ") + plugin + " { } }"),
              "run.pbtxt:2:8: 'path' has no default and must be given");
  }
  EXPECT_EQ(with_data("data { text { path: \"\" } }"),
            "run.pbtxt:2:15: 'path': \"\" is outside 1 .. 4096 bytes");
  EXPECT_EQ(with_data("data { mnist { images: \"a\" } }"),
            "run.pbtxt:2:8: 'labels' has no default and must be given");
  EXPECT_EQ(with_data("data { txt { } }"),
            "run.pbtxt:2:8: unknown key 'txt' in 'data'; did you mean 'text'?");
  EXPECT_EQ(with_data("data { text { contxt: 3 } }"),
            "run.pbtxt:2:15: unknown key 'contxt' in 'text'; did you mean 'context'?");
  const auto with_train = [&](const std::string& train) {
    return Sentence(std::string(kModel) + "data { synthetic {} }\n" + train + "\n" + kPlugins);
  };
  EXPECT_EQ(with_train("train { global_batch: 4 }"),
            "run.pbtxt:3:1: 'train' needs one of: steps, epochs, tokens");
  EXPECT_EQ(with_train("train { steps: 4 epochs: 1 global_batch: 4 }"),
            "run.pbtxt:3:18: 'epochs' and 'steps' exclude each other; keep one");
  EXPECT_EQ(with_train("train { tokens: 40 epochs: 1 global_batch: 4 }"),
            "run.pbtxt:3:20: 'epochs' and 'tokens' exclude each other; keep one");
  EXPECT_EQ(with_train("train { steps: 4 global_batch: 4 group { learning_rate_scale: 2 } }"),
            "run.pbtxt:3:34: 'train.group[0]' needs 'parameters'");
  EXPECT_EQ(with_train("train { group { parameters: \"a\" } group { parameters: \"a\" } }"),
            "run.pbtxt:3:43: two groups are for 'a'; make one of them");
  EXPECT_EQ(with_train("train { group { parameters: \"a\" weight_decay_scale: -1 } }"),
            "run.pbtxt:3:33: 'weight_decay_scale' is -1 and must be at least 0 and at most "
            "1000000000");
  EXPECT_EQ(with_train("train { steps: 4 }"),
            "run.pbtxt:3:1: 'train' needs one of: global_batch, batch_per_rank");
  EXPECT_EQ(with_train("train { steps: 4 global_batch: 4\n checkpoint_every: 10 }"),
            "run.pbtxt:4:2: 'checkpoint_every' needs a file for the checkpoints: "
            "'output.checkpoint'");
  EXPECT_EQ(with_train("train { steps: 4 global_batch: 4 }\noutput { keep_checkpoints: 2 }"),
            "run.pbtxt:4:10: 'keep_checkpoints' needs a file for the checkpoints: "
            "'output.checkpoint'");
  EXPECT_EQ(with_train("train { steps: 4 global_batch: 4 }\noutput { checkpoint: \"a/b.st\"\n"
                       "best_checkpoint: \"a/./b.st\" }"),
            "run.pbtxt:5:1: 'checkpoint' and 'best_checkpoint' are one file: name two");
}

TEST_F(ConfigTest, NumbersOutOfRange) {
  EXPECT_EQ(Sentence(Good() + "communication { timeout_ms: 0 }"),
            "run.pbtxt:7:17: 'timeout_ms' is 0 and must be at least 1 and at most 86400000");
  EXPECT_EQ(Sentence("model { mlp { hidden: 4 hidden: -1 } }\n" + std::string(kRun) + kPlugins),
            "run.pbtxt:1:25: 'hidden': -1 is outside 1 .. 1048576");
  EXPECT_EQ(Sentence("model { resnet { stem: ImageNet } }\n" + std::string(kRun) + kPlugins),
            "run.pbtxt:1:24: 'ImageNet' is none of IMAGENET, CIFAR");
  EXPECT_THAT(Sentence(Good(), {"train.learning_rate.base=nan"}),
              EndsWith("'base' is nan and must be at least 0 and finite"));
  EXPECT_THAT(Sentence(Good(), {"train.epochs=0"}), HasSubstr("must be above 0"));
  EXPECT_EQ(Sentence(Good() + "test_sched { share: 1.5 }"),
            "run.pbtxt:7:14: 'share': 1.5 is outside 0 .. 1");
  EXPECT_EQ(Sentence(Good() + "test_sched { order: \"fast\" }"),
            "run.pbtxt:7:14: 'order': \"fast\" is none of ready | priority");
  EXPECT_EQ(Sentence(Good() + "test_sched { share: nan }"),
            "run.pbtxt:7:14: 'share': nan is not a finite number");
  EXPECT_EQ(Sentence(Net("layer { linear { units: 0 } }")),
            "run.pbtxt:2:18: 'units': 0 is outside 1 .. 65536");
  // Also of plugins that are not chosen.
  EXPECT_THAT(Refusal(Good() + "test_sched { credit: 99 }", {}, {"other_sched"}),
              HasSubstr("run.pbtxt:7:14: 'credit': 99 is outside 1 .. 64"));
}

TEST_F(ConfigTest, RequiredOptions) {
  const std::string without = std::string(kModel) + kRun +
                              "plugins: [\"test_comm\", \"test_sched\",\n \"test_opt\", "
                              "\"test_ops\"]\n";
  EXPECT_EQ(Sentence(without),
            "run.pbtxt:5:2: plugin 'test_opt' needs 'test_opt.state_bits', which has no default");
  EXPECT_EQ(Sentence(without + "test_opt { }\n"),
            "run.pbtxt:6:1: 'state_bits' has no default and must be given");
  EXPECT_EQ(Sentence(Net("layer { linear {} }")),
            "run.pbtxt:2:9: 'units' has no default and must be given");
}

TEST_F(ConfigTest, Layers) {
  EXPECT_EQ(Sentence("model { net {} }\n" + std::string(kRun) + kPlugins),
            "run.pbtxt:1:9: there is no 'layer' in this block");
  EXPECT_EQ(Sentence(Net("layer { relu {} }\n layer { name: \"x\" }")),
            "run.pbtxt:3:2: a layer names one op, or 'residual'; this one names none");
  EXPECT_EQ(Sentence(Net("layer { relu {} linear { units: 1 } }")),
            "run.pbtxt:2:9: a layer is one op or one residual block; this one has 'linear' and "
            "'relu'");
  EXPECT_EQ(Sentence(Net("layer { relu {}\n residual { layer { relu {} } } }")),
            "run.pbtxt:3:2: a layer is one op or one residual block; this one has 'relu' and "
            "'residual'");
  EXPECT_EQ(Sentence(Net("layer { residual { layer { swish {} } } }")),
            "run.pbtxt:2:28: the op 'swish' is offered by the plugin 'extra_ops', which is not "
            "chosen; add it to 'plugins'");
}

TEST_F(ConfigTest, Plugins) {
  const auto sentence = [this](const std::string& text, std::vector<std::string> plugins = {}) {
    const std::string message = Refusal(text, {}, std::move(plugins), StatusCode::kPlugin);
    return message.substr(0, message.find('\n'));
  };
  const std::string rest = std::string(kModel) + kRun;
  EXPECT_THAT(sentence(rest + "plugins: [\"test_comm\",\n\t\"tets_sched\"]"),
              AllOf(StartsWith("run.pbtxt:5:2: plugin 'tets_sched' was not found in "),
                    EndsWith("; did you mean 'test_sched'?")));
  EXPECT_THAT(sentence(Good(), {"absent"}),
              StartsWith("--plugins absent: plugin 'absent' was not"));
  EXPECT_THAT(sentence(Good(), {"no_symbol"}), HasSubstr("exports no engine_plugin_v0"));
  EXPECT_EQ(sentence(Good(), {"test_comm", "other_comm"}),
            "plugins 'test_comm' and 'other_comm' both fill the role 'communicator'; choose one");
  EXPECT_EQ(sentence(rest + "plugins: \"test_comm\" plugins: \"other_comm\" plugins: \"test_ops\""),
            "plugins 'test_comm' and 'other_comm' both fill the role 'communicator'; choose one");
  EXPECT_EQ(sentence(rest + "plugins: [\"test_comm\", \"test_ops\", \"plain_opt\"]"),
            "no chosen plugin fills the role 'scheduler'; found: other_sched, test_sched");
  EXPECT_EQ(sentence(rest + "plugins: [\"test_comm\", \"extra_ops\", \"plain_opt\"]"),
            "no chosen plugin fills the role 'ops with a device'; found: no_device_ops, test_ops");
  EXPECT_EQ(sentence(rest + "plugins: [\"test_comm\", \"test_ops\", \"test_comm\"]"),
            "plugin 'test_comm' is chosen twice");
  EXPECT_EQ(sentence(Good(), {"clash_ops"}),
            "plugins 'test_ops' and 'clash_ops' both offer the op 'relu'");
  EXPECT_EQ(sentence(Good(), {"text"}),
            "plugin 'text' is a dataset: choose it by its block, data { text { ... } }");
  EXPECT_EQ(sentence(Good(), {"train"}),
            "plugin 'train' (" ENGINE_FIXTURE_DIR
            "/libengine_train.so) has the name of a key of the configuration; rename it");
}

TEST_F(ConfigTest, AllMistakesOfAFileAtOnce) {
  EXPECT_EQ(Refusal("sead: 1\nmodel { mlp { hidden: 0 } }\ndata { synthetic { sampels: 3 } }\n"
                    "train { stepps: 10 global_batch: \"8\" prefetch: 2\n"
                    "  learning_rate { schedule: COS final_ratio: 7 } }\n" +
                    std::string(kPlugins)),
            "run.pbtxt:1:1: unknown key 'sead'; did you mean 'seed'?\n"
            "  sead: 1\n"
            "  ^\n"
            "run.pbtxt:3:20: unknown key 'sampels' in 'synthetic'; did you mean 'samples'?\n"
            "  data { synthetic { sampels: 3 } }\n"
            "                     ^\n"
            "run.pbtxt:4:9: unknown key 'stepps' in 'train'; did you mean 'steps'?\n"
            "  train { stepps: 10 global_batch: \"8\" prefetch: 2\n"
            "          ^\n"
            "run.pbtxt:4:34: expected an integer, found \"8\"\n"
            "  train { stepps: 10 global_batch: \"8\" prefetch: 2\n"
            "                                   ^\n"
            "run.pbtxt:4:38: unknown key 'prefetch' in 'train'; did you mean 'data.prefetch'?\n"
            "  train { stepps: 10 global_batch: \"8\" prefetch: 2\n"
            "                                       ^\n"
            "run.pbtxt:5:29: 'COS' is none of CONSTANT, COSINE\n"
            "    learning_rate { schedule: COS final_ratio: 7 } }\n"
            "                              ^\n"
            "run.pbtxt:5:33: 'final_ratio' is 7 and must be at least 0 and at most 1\n"
            "    learning_rate { schedule: COS final_ratio: 7 } }\n"
            "                                  ^\n"
            "run.pbtxt:2:15: 'hidden': 0 is outside 1 .. 1048576\n"
            "  model { mlp { hidden: 0 } }\n"
            "                ^");
  // What is not there, where all that is there was understood.
  EXPECT_THAT(Refusal("model { net { layer {} layer { linear {} } } }\ndata { text { } }\n"
                      "train { steps: 1 }\n" +
                      std::string(kPlugins)),
              ::testing::AllOf(HasSubstr("1:15: a layer names one op"),
                               HasSubstr("1:32: 'units' has no default"),
                               HasSubstr("2:8: 'path' has no default"),
                               HasSubstr("3:1: 'train' needs one of: global_batch")));
}

TEST_F(ConfigTest, ALayerWithoutItsBlockIsExplained) {
  EXPECT_EQ(Sentence(Net("layer { residual { linear { units: 3 } } }")),
            "run.pbtxt:2:20: unknown key 'linear' in 'residual'; put it into a layer: layer { "
            "linear {} }");
}

TEST_F(ConfigTest, PointsOfTheLearningRate) {
  const auto sentence = [this](const std::string& rate) {
    const std::string message = Sentence(WithRate(rate));
    return message.substr(message.find(": ") + 2);
  };
  EXPECT_EQ(sentence("point { factor: 2 }"),
            "'train.learning_rate.point[0]' needs one of: step, epoch, fraction");
  EXPECT_EQ(sentence("point { step: 1 epoch: 1 }"),
            "'epoch' and 'step' exclude each other; keep one");
  EXPECT_EQ(sentence("point { fraction: 1.5 }"),
            "'fraction' is 1.5 and must be at least 0 and at most 1");
  EXPECT_EQ(sentence("point { epoch: 2 } point { step: 9 } point { epoch: 1 }"),
            "points come in the order of time; one before this is at 2");
  EXPECT_EQ(sentence("point { step: 2 factor: 0 } point { step: 9 curve: EXPONENTIAL }"),
            "an exponential needs factors above 0 at both ends");
  EXPECT_EQ(sentence("warmup_steps: 3 point { step: 9 }"),
            "'warmup_steps' is the short form of a curve; give it or points");
  EXPECT_EQ(sentence("point { step: 2 curve: SINE }"),
            "'SINE' is none of LINEAR, COSINE, EXPONENTIAL, STEP");
}

TEST_F(ConfigTest, Overrides) {
  const auto sentence = [this](const std::string& argument) {
    const std::string message = Sentence(Good(), {argument});
    EXPECT_THAT(message, StartsWith("--set " + argument + ": "));
    return message.substr(std::string("--set " + argument + ": ").size());
  };
  EXPECT_EQ(sentence("test_opt.beta9=1"),
            "unknown key 'beta9' in 'test_opt'; did you mean 'beta1'?");
  EXPECT_EQ(sentence("tran.steps=1"), "unknown key 'tran'; did you mean 'train'?");
  EXPECT_EQ(sentence("train.steps"), "there is no '='; write key=value");
  EXPECT_EQ(sentence("train.steps=many"), "'many' is not an integer in range");
  EXPECT_EQ(sentence("train.steps="), "'' is not an integer in range");
  EXPECT_EQ(sentence("data.shuffle=maybe"), "'maybe' is not true or false");
  EXPECT_EQ(sentence("test_opt.beta1=x"), "'x' is not a number");
  EXPECT_EQ(sentence("train.learning_rate.schedule=cos"), "'COS' is none of CONSTANT, COSINE");
  EXPECT_EQ(sentence("train.learning_rate=1"),
            "'learning_rate' is a block; name one of its keys: base, schedule, warmup_steps, "
            "final_ratio, point");
  EXPECT_EQ(sentence("train.steps.x=1"), "'steps' has no keys");
  EXPECT_EQ(sentence("model.net.layer.name=x"),
            "'layer' is a list of blocks, which only a file can give");
  EXPECT_EQ(sentence("model.net.layer=x"),
            "'layer' is a list of blocks, which only a file can give");
  EXPECT_EQ(sentence("=1"),
            "unknown key '': neither a key of the configuration nor a plugin that was found");
  EXPECT_EQ(sentence("train.steps=0"), "'steps' is 0 and must be at least 1 and at most 1e+15");
  EXPECT_EQ(sentence("test_opt.beta1=2"), "'beta1': 2 is outside 0 .. 1");
}

}  // namespace
}  // namespace engine::config
