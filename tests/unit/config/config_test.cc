#include "app/config/config.h"

#include <cstring>
#include <sstream>

#include "app/config/engine.pb.h"
#include "tests/support/expect_status.h"
#include "tests/unit/config/config_fixture.h"

namespace engine::config {
namespace {

std::vector<std::string> Plugins(const Config& config) {
  // As they are printed: plugins: "a", a line each.
  std::vector<std::string> names;
  std::istringstream text(config.Print(false));
  for (std::string line; std::getline(text, line);) {
    const size_t begin = line.find('"') + 1;
    if (line.starts_with("plugins: ")) names.push_back(line.substr(begin, line.size() - begin - 1));
  }
  return names;
}

const plugin::OwnedOption& Option(const std::vector<plugin::OwnedOption>& options,
                                  const std::string& name) {
  for (const plugin::OwnedOption& option : options) {
    if (option.name == name) return option;
  }
  ADD_FAILURE() << name;
  return options.front();
}

TEST_F(ConfigTest, FillsDefaultsAndChoosesPlugins) {
  const auto config = ValueOf(Load(Good()));
  EXPECT_EQ(config.run().train.length.steps, 10);
  EXPECT_EQ(config.run().train.learning_rate(1, 10, 1), 0.001);
  const plugin::PluginSelection& plugins = config.plugins();
  EXPECT_EQ(plugins.model.entry.name, "mlp");
  EXPECT_THAT(Option(plugins.model.options, "hidden").integers, ElementsAre(16, 8));
  EXPECT_EQ(Option(plugins.model.options, "activation").string, "relu");
  EXPECT_EQ(plugins.model.origin, "run.pbtxt:1");
  EXPECT_EQ(plugins.dataset.entry.name, "synthetic");
  EXPECT_THAT(Option(plugins.dataset.options, "shape").integers, ElementsAre(32));
  EXPECT_EQ(plugins.communicator.entry.name, "test_comm");
  EXPECT_EQ(plugins.ops.at(0).entry.name, "test_ops");
  EXPECT_EQ(Option(plugins.optimizer.options, "beta1").number, 0.9);
  EXPECT_EQ(Option(plugins.optimizer.options, "state_bits").integer, 32);
  const auto& scheduler = plugins.scheduler.options;
  ASSERT_EQ(scheduler.size(), 5u);
  EXPECT_EQ(Option(scheduler, "credit").integer, 4);
  EXPECT_EQ(Option(scheduler, "share").number, 0.5);
  EXPECT_EQ(Option(scheduler, "merge").integer, 1);
  EXPECT_EQ(Option(scheduler, "order").string, "ready");
  EXPECT_EQ(Option(scheduler, "label").string, "");
}

TEST_F(ConfigTest, ReadsOptionsOfEachType) {
  const auto config =
      ValueOf(Load(Good() + "test_sched { credit: 0x10 share: 1 merge: false order: \"priority\"\n"
                            "  label: 'grüße \"you\"' }\n"));
  const auto& options = config.plugins().scheduler.options;
  EXPECT_EQ(Option(options, "credit").integer, 16);
  EXPECT_EQ(Option(options, "share").number, 1);
  EXPECT_EQ(Option(options, "merge").integer, 0);
  EXPECT_EQ(Option(options, "order").string, "priority");
  EXPECT_EQ(Option(options, "label").string, "grüße \"you\"");
}

TEST_F(ConfigTest, ReadsLayersWithOpsOfThirdParties) {
  const auto config = ValueOf(Load(Net(R"(
    layer { linear { units: 64 } name: "first" trainable: false priority: 3 }
    layer { residual {
      layer { swish { beta: 2 } }
      layer { residual { layer { linear { units: 64 bias: false } } } }
    } shortcut { layer { relu {} } } }
    layer { flatten {} })"),
                                   {}, {"extra_ops"}));
  // As a model plugin sees them.
  const std::vector<LayerSpec>& layers = *Option(config.plugins().model.options, "layer").layers;
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].op, "linear");
  EXPECT_EQ(layers[0].name, "first");
  EXPECT_EQ(layers[0].trainable, 0u);
  EXPECT_EQ(layers[0].priority, 3);
  EXPECT_EQ(Options(layers[0].attributes).Int("units"), 64);
  EXPECT_TRUE(Options(layers[0].attributes).Bool("bias"));
  EXPECT_EQ(layers[1].op, "");
  EXPECT_EQ(layers[1].shortcut.size(), 1u);
  EXPECT_EQ(layers[1].shortcut[0].op, "relu");
  ASSERT_EQ(layers[1].residual.size(), 2u);
  EXPECT_EQ(layers[1].residual[0].op, "swish");
  EXPECT_EQ(Options(layers[1].residual[0].attributes).Float("beta"), 2);
  EXPECT_EQ(Options(layers[1].residual[0].attributes).String("mode"), "exact");
  ASSERT_EQ(layers[1].residual[1].residual.size(), 1u);
  EXPECT_FALSE(Options(layers[1].residual[1].residual[0].attributes).Bool("bias"));
  EXPECT_TRUE(layers[2].attributes.empty());
}

TEST_F(ConfigTest, PluginsOfTheCommandLineReplaceTheirRole) {
  const auto config =
      ValueOf(Load(Good(), {}, {"other_comm", "test_hook", "extra_ops", "plain_opt"}));
  EXPECT_THAT(Plugins(config), ElementsAre("other_comm", "test_sched", "plain_opt", "test_ops",
                                           "test_hook", "extra_ops"));
  EXPECT_EQ(config.plugins().communicator.entry.name, "other_comm");
  EXPECT_EQ(config.plugins().hooks.at(0).entry.name, "test_hook");
  EXPECT_EQ(config.plugins().ops.at(1).entry.name, "extra_ops");
  // The same again changes nothing.
  const auto again = ValueOf(Load(Good(), {}, {"other_comm", "other_comm", "test_sched"}));
  EXPECT_EQ(Plugins(again).size(), 4u);
}

TEST_F(ConfigTest, DefaultsFillRolesThatNobodyFills) {
  const auto load = [](const std::string& text, std::vector<std::string> plugins) {
    return Config::Load({.text = text,
                         .origin = "run.pbtxt",
                         .plugins = std::move(plugins),
                         .default_plugins = {{.name = "other_comm"}, {.name = "no_such_plugin"}},
                         .plugin_folders = {ENGINE_FIXTURE_DIR, ENGINE_DATA_AND_MODELS_DIR}});
  };
  std::string unnamed = Good();
  unnamed.erase(unnamed.find("\"test_comm\", "), std::strlen("\"test_comm\", "));
  const auto filled = ValueOf(load(unnamed, {}));
  EXPECT_EQ(filled.plugins().communicator.entry.name, "other_comm");
  EXPECT_THAT(filled.Print(true), HasSubstr("# default\n"));
  EXPECT_EQ(load(Good(), {})->plugins().communicator.entry.name, "test_comm");
  EXPECT_EQ(load(unnamed, {"test_comm"})->plugins().communicator.entry.name, "test_comm");
  EXPECT_FALSE(Load(unnamed).ok());
}

TEST_F(ConfigTest, APluginMayBeAFile) {
  plugin::PluginFolder folder;
  folder.Add("other_sched");
  const auto config = ValueOf(Load(Good(), {}, {folder.File("other_sched")}));
  EXPECT_EQ(config.plugins().scheduler.entry.path, folder.File("other_sched"));
  EXPECT_THAT(config.Print(false), HasSubstr("plugins: \"" + folder.File("other_sched") + "\""));
}

TEST_F(ConfigTest, ThePathOfTheFileComesAfterThatOfTheCommandLine) {
  plugin::PluginFolder folder;
  folder.Add("test_sched");
  const ConfigRequest request{.text = Good() + "plugin_path: \"here\"\n",
                              .origin = "run.pbtxt",
                              .base_folder = std::filesystem::path(folder.path()).parent_path(),
                              .plugin_folders = {ENGINE_FIXTURE_DIR, ENGINE_DATA_AND_MODELS_DIR}};
  ConfigRequest relative = request;
  const std::string name = std::filesystem::path(folder.path()).filename();
  relative.text.replace(relative.text.find("here"), 4, name);
  const auto config = ValueOf(Config::Load(relative));
  EXPECT_EQ(config.plugins().scheduler.entry.path, folder.File("test_sched"));
  EXPECT_EQ(config.catalog().folders().front(), folder.path());
  relative.first_folders = {ENGINE_FIXTURE_DIR};
  EXPECT_EQ(ValueOf(Config::Load(relative)).catalog().folders().front(), ENGINE_FIXTURE_DIR);
  EXPECT_THAT(Config::Load(request).status().message(),
              AllOf(HasSubstr("run.pbtxt:"), HasSubstr("there is no folder")));
  const auto by_flag = ValueOf(Load(Good(), {"plugin_path=" + folder.path()}));
  EXPECT_EQ(by_flag.plugins().scheduler.entry.path, folder.File("test_sched"));
}

TEST_F(ConfigTest, OptionsOfPluginsThatAreNotChosenAreKept) {
  const auto config = ValueOf(Load(Good(), {}, {"plain_opt"}));
  EXPECT_THAT(config.Print(true), HasSubstr("# run.pbtxt:6, not used"));
  EXPECT_THAT(config.Print(false), Not(HasSubstr("beta1")));
}

TEST_F(ConfigTest, OverridesAreStrongerThanTheFile) {
  const auto config = ValueOf(
      Load(Good(),
           {"train.epochs=2.5", "train.batch_per_rank=4", "seed=7", "test_opt.beta1=0.5",
            "data.shuffle=false", "model.mlp.hidden=3,4,5", "train.learning_rate.schedule=cosine",
            "output.checkpoint=a b.safetensors", "output.metrics=\"quoted\"", "seed=8",
            "plugins=extra_ops,test_comm,other_sched,plain_opt,test_ops"}));
  const train::RunConfig& run = config.run();
  EXPECT_FALSE(run.train.length.steps);
  EXPECT_EQ(run.train.length.epochs, 2.5);
  EXPECT_FALSE(run.train.global_batch);
  EXPECT_EQ(run.seed, 8u) << "the last one counts";
  EXPECT_FALSE(run.data.shuffle);
  EXPECT_THAT(Option(run.plugins.model.options, "hidden").integers, ElementsAre(3, 4, 5));
  EXPECT_NEAR(run.train.learning_rate(100, 100, 1), 0.1 * run.train.learning_rate(1, 100, 1), 1e-6)
      << "COSINE";
  EXPECT_EQ(config.output().checkpoint, "a b.safetensors");
  EXPECT_EQ(config.output().metrics, "quoted");
  EXPECT_EQ(config.plugins().optimizer.entry.name, "plain_opt");
  EXPECT_EQ(config.plugins().ops.at(0).entry.name, "test_ops") << "the device comes first";
}

TEST_F(ConfigTest, TheShortFormOfARateIsTheCurveOfItsPoints) {
  const auto rate = [&](const std::string& block) {
    return ValueOf(Load(WithRate("base: 0.5 " + block))).run().train.learning_rate;
  };
  const auto brief = rate("schedule: COSINE warmup_steps: 20");
  const auto points = rate(
      "point { step: 0 factor: 0 } point { step: 20 } point { fraction: 1 factor: 0.1 curve: "
      "COSINE }");
  const auto epochs = rate("point { epoch: 2 } point { epoch: 4 factor: 0.5 curve: STEP }");
  for (int64_t step = 1; step <= 120; ++step) {
    EXPECT_EQ(brief(step, 100, 10), points(step, 100, 10)) << step;
    EXPECT_EQ(epochs(step, 100, 10), step < 40 ? 0.5 : 0.25) << step;
  }
  EXPECT_EQ(points(10, 100, 10), 0.25);
  EXPECT_EQ(points(100, 100, 10), 0.5 * 0.1);
}

TEST_F(ConfigTest, AnOverrideOfTheLengthDropsTheOtherTwo) {
  const auto last = [&](const std::vector<std::string>& overrides) {
    const auto config = Load(Good(), overrides);
    EXPECT_TRUE(config.ok()) << config.status().message();
    if (!config.ok()) return std::vector<double>();
    const train::RunLength& length = config->run().train.length;
    return std::vector<double>{static_cast<double>(length.steps.value_or(0)),
                               length.epochs.value_or(0),
                               static_cast<double>(length.tokens.value_or(0))};
  };
  EXPECT_THAT(last({"train.tokens=1000"}), ElementsAre(0, 0, 1000));
  EXPECT_THAT(last({"train.tokens=1000", "train.epochs=2"}), ElementsAre(0, 2, 0));
  EXPECT_THAT(last({"train.epochs=2", "train.tokens=7", "train.steps=3"}), ElementsAre(3, 0, 0));
}

TEST_F(ConfigTest, AnOverrideMayChooseAnotherKind) {
  const auto config = ValueOf(Load(Good(), {"model.gpt.width=64", "data.text.path=."}));
  EXPECT_EQ(config.plugins().model.entry.name, "gpt");
  EXPECT_EQ(config.plugins().dataset.entry.name, "text");
  EXPECT_EQ(Option(config.plugins().dataset.options, "path").string, ".");
}

// The keys below a block of engine.proto that have defaults.
void ExpectKeys(const google::protobuf::Descriptor& block, const std::string& printed) {
  for (int i = 0; i < block.field_count(); ++i) {
    const auto* key = block.field(i);
    if (key->has_default_value()) {
      EXPECT_THAT(printed, HasSubstr(key->name() + ": "));
    }
    if (key->message_type() && !key->is_repeated()) ExpectKeys(*key->message_type(), printed);
  }
}

TEST_F(ConfigTest, PrintsEveryValueAndItsOrigin) {
  const auto config = ValueOf(Load(Good(), {"train.learning_rate.base=0.5"}, {"other_comm"}));
  const std::string printed = config.Print(true);
  EXPECT_THAT(printed, ::testing::MatchesRegex(
                           "( *[a-z_0-9]+ \\{\n| *\\}\n| *[a-z_0-9]+: [^\n]+  # [^\n]+\n)+"));
  ExpectKeys(*proto::Config::descriptor(), printed);
  for (const char* lines :
       {"seed: 1                                   # default\n",
        "model {\n  mlp {\n    hidden: 16                            # run.pbtxt:1\n"
        "    hidden: 8                             # run.pbtxt:1\n"
        "    activation: \"relu\"                    # default\n",
        "    eval_samples: 256                     # default\n    classes: 10 ",
        "    base: 0.5                             # --set\n",
        "plugins: \"other_comm\"                     # --plugins\n"
        "plugins: \"test_sched\"                     # run.pbtxt:4\n",
        "test_opt {\n  beta1: 0.9                              # default\n"
        "  state_bits: 32                          # run.pbtxt:6\n}\n"}) {
    EXPECT_THAT(printed, HasSubstr(lines));
  }
}

TEST_F(ConfigTest, RanksCompareWhatIsComputedAndNotHowTheirHostsAre) {
  const auto compared = [&](std::vector<std::string> overrides) {
    return ValueOf(Load(Good(), std::move(overrides))).compared();
  };
  const std::string all = compared({});
  for (const char* line : {"seed: 1\n", "model.mlp.hidden: 16\nmodel.mlp.hidden: 8\n",
                           "train.learning_rate.base: 0.001\n", "test_opt.state_bits: 32\n"}) {
    EXPECT_THAT(all, HasSubstr(line));
  }
  EXPECT_EQ(all, compared({"data.prefetch=0", "plugin_path=.", "output.checkpoint="}));
  const std::string with_checkpoint = compared({"output.checkpoint=here"});
  EXPECT_NE(all, with_checkpoint) << "all ranks take part in one";
  EXPECT_EQ(with_checkpoint, compared({"output.checkpoint=there"}));
  EXPECT_NE(all, compared({"train.learning_rate.base=0.5"}));
}

TEST_F(ConfigTest, WhatIsPrintedLoadsAndPrintsTheSame) {
  const std::string net = Net(R"(
    layer { name: "a\"\n\t" linear { units: 64 } }
    layer { residual { layer { swish { beta: 0.1 } } } })");
  for (const std::string& text : {Good(), net}) {
    const auto config =
        ValueOf(Load(text, {"train.learning_rate.base=1e-300"}, {"extra_ops", "test_hook"}));
    for (const bool origins : {false, true}) {
      const auto again = ValueOf(Load(config.Print(origins)));
      EXPECT_EQ(again.Print(false), config.Print(false));
      EXPECT_EQ(again.run().train.learning_rate(1, 10, 1), 1e-300);
      EXPECT_EQ(again.plugins().model.entry.name, config.plugins().model.entry.name);
      if (again.plugins().model.entry.name != "net") continue;
      const auto& list = *Option(again.plugins().model.options, "layer").layers;
      EXPECT_EQ(list.size(), 2u);
      EXPECT_EQ(list[0].name, "a\"\n\t");
    }
  }
}

// Of a checkpoint, which may come from anybody.
TEST_F(ConfigTest, DataChoosesNeitherLibrariesNorFilesToWrite) {
  plugin::PluginFolder good, evil;
  for (const char* name : {"test_comm", "test_opt", "test_ops"}) good.Add(name);
  const std::string file = evil.Add("test_sched");
  ConfigRequest request{.origin = "x.safetensors",
                        .is_data = true,
                        .plugin_folders = {good.path(), ENGINE_DATA_AND_MODELS_DIR}};
  const auto refusal = [&](const std::string& line) {
    request.text = std::string(kModel) + kRun + line;
    const auto config = Config::Load(request);
    EXPECT_EQ(config.status().code(), StatusCode::kPlugin) << line;
    return std::string(config.status().message());
  };
  const std::string others = "plugins: \"test_comm\" plugins: \"test_opt\" plugins: \"test_ops\" ";
  EXPECT_THAT(refusal(others + "plugins: \"" + file + "\""),
              AllOf(HasSubstr("data may not choose a library"), HasSubstr("--plugins " + file)));
  EXPECT_THAT(refusal("plugin_path: \"" + evil.path() + "\" plugins: \"test_sched\" " + others),
              HasSubstr("was not found"));
  request.plugins = {"test_opt"};  // has nothing to do with a file without a plugin's name
  EXPECT_THAT(refusal(others + "plugins: \"/evil/x.so\""), HasSubstr("'/evil/x.so' is a file"));
  EXPECT_FALSE(evil.Initialised("test_sched"));

  request.plugins = {file};
  request.overrides = {"output.trace=mine.json"};
  request.text = std::string(kModel) + kRun + "test_opt { state_bits: 32 } " + others +
                 "plugins: \"" + file +
                 "\" output { checkpoint: \"a\" metrics: \"b\" trace: \"c\" }";
  const auto config = ValueOf(Config::Load(request));
  EXPECT_EQ(config.plugins().scheduler.entry.path, file) << "the user names it";
  EXPECT_EQ(config.output().checkpoint + config.output().metrics, "");
  EXPECT_EQ(config.output().trace, "mine.json");
  EXPECT_THAT(config.output().dropped, ElementsAre("output.checkpoint", "output.metrics"));
}

}  // namespace
}  // namespace engine::config
