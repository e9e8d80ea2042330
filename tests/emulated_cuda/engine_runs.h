// Whole runs of the engine with plugins over fakes.
#pragma once

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"

namespace engine::test {

using Words = std::vector<std::string>;

class EngineRuns : public ::testing::Test {
 protected:
  // The emulated plugins come before the real ones, and the fakes before their originals.
  Outcome Run(const std::string& config, Words more,
              std::map<std::string, std::string> environment = {}) {
    environment.emplace("EMULATED_CUDA_DEVICES", "3");
    more.insert(more.begin(), {"run", config, "-q", "--plugin-path", EMULATED_PLUGINS});
    return RunEngine(folder_.path(), std::move(more), environment);
  }

  // Losses of all steps and evaluations.
  std::vector<double> Losses(const std::string& config, Words more) {
    more.insert(more.end(), {"--set", "output.metrics=metrics.jsonl"});
    const Outcome outcome = Run(config, std::move(more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return TakeLosses("metrics.jsonl");
  }
  // Of a file of metrics, which goes.
  std::vector<double> TakeLosses(const char* name) {
    std::vector<double> losses;
    std::ifstream file(folder_ / name);
    for (std::string line; std::getline(file, line);) {
      const auto entry = nlohmann::json::parse(line);
      if (entry.contains("loss")) losses.push_back(entry["loss"].get<double>());
    }
    std::remove((folder_ / name).c_str());
    EXPECT_GT(losses.size(), 2u);
    return losses;
  }

  // gpt.pbtxt, for one rank on the CPU unless told else. Heads of 64, so that bfloat16 takes the
  // kernels that GPT-2 takes.
  void WriteGpt() {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text.append("It was a bright cold day in April, and nothing here was ever printed before by ")
          .append("anybody else. ")
          .append(std::to_string(i * i));
    }
    folder_.Write("text", text);
    folder_.Write(
        "gpt.pbtxt",
        "seed: 5 model { gpt { layers: 1 width: 64 heads: 1 tied: true } }\n"
        "data { text { path: \"text\" context: 24 } }\n"
        "train { steps: 6 global_batch: 3 evaluate_samples: 6 learning_rate { base: 0.01 } }\n"
        "plugins: [\"null\", \"priority_sched\", \"adamw\", \"cpu_ops\", \"clip_norm\"]\n"
        "clip_norm { max_norm: 0.5 }\n");
  }

  TempFolder folder_;
};

}  // namespace engine::test
