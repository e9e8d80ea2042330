// Loads configurations against the fixture plugins.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "app/config/config.h"
#include "tests/unit/plugin/plugin_folder.h"

namespace engine::config {

class ConfigTest : public ::testing::Test {
 protected:
  // A small valid configuration; line 5 is free for a test to add to.
  static constexpr const char* kPlugins =
      "plugins: [\"test_comm\", \"test_sched\",\n  \"test_opt\", \"test_ops\"]\n"
      "test_opt { state_bits: 32 }\n";
  static constexpr const char* kRun =
      "data { synthetic {} }\ntrain { steps: 10 global_batch: 8 }\n";
  static constexpr const char* kModel = "model { mlp { hidden: [16, 8] } }\n";

  static std::string Good() { return std::string(kModel) + kRun + kPlugins; }

  // The same with keys of the learning rate.
  static std::string WithRate(const std::string& keys) {
    return "model { mlp { hidden: [16, 8] } }\ndata { synthetic {} }\n"
           "train { steps: 10 global_batch: 8 learning_rate { " +
           keys + " } }\n" + kPlugins;
  }

  // A net of these layers.
  static std::string Net(const std::string& layers) {
    return "model { net {\n" + layers + "\n} }\n" + kRun + kPlugins;
  }

  Result<Config> Load(const std::string& text, std::vector<std::string> overrides = {},
                      std::vector<std::string> plugins = {}) {
    return Config::Load({.text = text,
                         .origin = "run.pbtxt",
                         .overrides = std::move(overrides),
                         .plugins = std::move(plugins),
                         .plugin_folders = {ENGINE_FIXTURE_DIR, ENGINE_DATA_AND_MODELS_DIR}});
  }

  // The message of a configuration that must be refused.
  std::string Refusal(const std::string& text, std::vector<std::string> overrides = {},
                      std::vector<std::string> plugins = {},
                      StatusCode code = StatusCode::kConfig) {
    const auto config = Load(text, std::move(overrides), std::move(plugins));
    EXPECT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.status().code(), code) << config.status().message();
    return config.status().message();
  }

  // Its first line: place and sentence.
  std::string Sentence(const std::string& text, std::vector<std::string> overrides = {}) {
    const std::string message = Refusal(text, std::move(overrides));
    return message.substr(0, message.find('\n'));
  }
};

}  // namespace engine::config
