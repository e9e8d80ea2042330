// The arrows of docs/architecture.md, read from the include lines:
//
//   interfaces <- plugins/*
//   interfaces <- core/{plugin,tensor,trace,storage,launch} <- config <- {data,graph} <-
//   {models,exec}
//              <- train <- simulate <- cli
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace engine {
namespace {

namespace fs = std::filesystem;

// A folder of core/ may include itself and folders of a smaller level.
const std::map<std::string, int>& CoreLevels() {
  static const std::map<std::string, int> levels = {
      {"plugin", 1}, {"tensor", 1},   {"trace", 1}, {"storage", 1}, {"launch", 1},
      {"config", 2}, {"data", 3},     {"graph", 3}, {"models", 4},  {"exec", 4},
      {"train", 5},  {"simulate", 6}, {"cli", 7}};
  return levels;
}

std::vector<std::string> Split(const std::string& path) {
  std::vector<std::string> parts;
  for (const fs::path& part : fs::path(path)) parts.push_back(part.string());
  return parts;
}

struct Include {
  std::string target;
  bool quoted = false;  // "target", else <target>
};

std::string ObjectionInInterfaces(const Include& include) {
  const bool own = include.quoted && include.target.starts_with("engine/");
  // Headers of the C++ standard library have neither folder nor extension.
  const bool standard = !include.quoted && include.target.find_first_of("/.") == std::string::npos;
  return own || standard ? "" : "the SDK includes the C++ standard library and itself only";
}

std::string ObjectionInPlugin(const fs::path& root, const std::string& plugin,
                              const Include& include) {
  const std::string first = Split(include.target).front();
  const bool ours = first == "core" || first == "plugins" || first == "bench" || first == "tests";
  if (ours) return "a plugin sees no part of the engine but its interfaces";
  if (!include.quoted || first == "engine") return "";
  // What the plugins for NVIDIA GPUs share.
  if (first == "cuda_kit" && (plugin == "cuda_ops" || plugin == "nccl")) return "";
  fs::path source = include.target;
  if (include.target.ends_with(".pb.h")) source.replace_extension().replace_extension(".proto");
  if (fs::exists(root / "plugins" / plugin / source)) return "";
  return "a plugin includes engine/... and its own folder only";
}

std::string ObjectionInCore(const std::string& folder, const Include& include) {
  const std::vector<std::string> target = Split(include.target);
  if (target[0] == "plugins") return "core knows no plugin";
  // The benchmarks stand beside the core; the command line sees them through one header.
  if (folder == "cli" && include.target == "bench/bench.h") return "";
  if (target[0] != "core") {
    return !include.quoted || target[0] == "engine" ? ""
                                                    : "includes are rooted: core/..., engine/...";
  }
  const auto& levels = CoreLevels();
  if (target.size() < 3) return "core has folders only";
  if (target[1] == folder) return "";
  if (levels.count(folder) == 0 || levels.count(target[1]) == 0) {
    return "this folder of core has no place in the order: give it one in layering_test.cc";
  }
  if (levels.at(target[1]) < levels.at(folder)) return "";
  return "core/" + folder + " stands below or beside core/" + target[1];
}

// Of the library behind `engine bench`.
std::string ObjectionInBench(const Include& include) {
  const std::vector<std::string> target = Split(include.target);
  if (!include.quoted) return "";
  if (target[0] == "bench" || target[0] == "engine") return "";
  if (target[0] == "core" && target[1] != "cli") return "";
  return "bench sees itself, the interfaces and core below core/cli";
}

// Why `file` (relative to the root) may not have this include, or "".
std::string Objection(const fs::path& root, const std::string& file, const Include& include) {
  if (include.target.find("..") != std::string::npos) return "includes are rooted";
  const std::vector<std::string> place = Split(file);
  if (place[0] == "interfaces") return ObjectionInInterfaces(include);
  if (place[0] == "plugins") return ObjectionInPlugin(root, place[1], include);
  if (place[0] == "bench") return ObjectionInBench(include);
  return ObjectionInCore(place[1], include);
}

std::vector<std::string> SourcesBelow(const fs::path& root, const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".h" || extension == ".cc" || extension == ".cu") {
      files.push_back(entry.path().lexically_relative(root).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Splits a source into its includes and whether anything else but comments is in it.
struct Source {
  std::vector<Include> includes;
  bool has_content = false;
};

std::string Trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  return begin == std::string::npos ? "" : line.substr(begin);
}

Source Read(const fs::path& path) {
  Source source;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    line = Trimmed(line);
    if (line.starts_with("#include")) {
      const size_t begin = line.find_first_of("<\"");
      if (begin == std::string::npos) continue;  // of a macro
      const size_t end = line.find_first_of(">\"", begin + 1);
      source.includes.push_back({line.substr(begin + 1, end - begin - 1), line[begin] == '"'});
    } else if (!line.empty() && !line.starts_with("//") && line != "#pragma once") {
      source.has_content = true;
    }
  }
  return source;
}

class Layering : public testing::TestWithParam<std::string> {
 protected:
  const fs::path root_ = ENGINE_TEST_SOURCE_DIR;
};

TEST_P(Layering, IncludesPointOneWay) {
  const std::vector<std::string> files = SourcesBelow(root_, GetParam());
  ASSERT_FALSE(files.empty());
  size_t includes = 0;
  for (const std::string& file : files) {
    for (const Include& include : Read(root_ / file).includes) {
      ++includes;
      EXPECT_EQ(Objection(root_, file, include), "") << file << " includes " << include.target;
    }
  }
  EXPECT_GT(includes, files.size() / 2);
}

TEST_P(Layering, NoHeaderIsAnUmbrella) {
  for (const std::string& file : SourcesBelow(root_, GetParam())) {
    EXPECT_TRUE(Read(root_ / file).has_content) << file << " only includes others";
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, Layering,
                         testing::Values("interfaces", "core", "plugins", "bench"));

// Lines of code: neither blank nor comment only.
size_t LinesOfCode(const fs::path& root, const std::vector<std::string>& folders) {
  size_t lines = 0;
  for (const std::string& folder : folders) {
    for (const std::string& file : SourcesBelow(root, folder)) {
      std::ifstream stream(root / file);
      for (std::string line; std::getline(stream, line);) {
        line = Trimmed(line);
        lines += !line.empty() && !line.starts_with("//");
      }
    }
  }
  return lines;
}

struct Bound {
  std::vector<std::string> folders;
  size_t lines;
};

TEST(Sizes, StayBelowTheirBounds) {
  const Bound bounds[] = {{{"plugins/cuda_ops", "plugins/nccl", "plugins/cuda_kit"}, 9200},
                          {{"tests/emulated_cuda"}, 8100}};
  for (const Bound& bound : bounds) {
    const size_t lines = LinesOfCode(ENGINE_TEST_SOURCE_DIR, bound.folders);
    EXPECT_LE(lines, bound.lines) << testing::PrintToString(bound.folders);
    EXPECT_GT(lines, bound.lines / 2) << "a bound far above what is there holds nothing";
  }
}

struct Example {
  const char* file;
  Include include;
  bool allowed;
};

TEST(LayeringRules, TellGoodFromBad) {
  const fs::path root = ENGINE_TEST_SOURCE_DIR;
  const Example examples[] = {
      {"interfaces/engine/op.h", {"engine/device.h", true}, true},
      {"interfaces/engine/op.h", {"span", false}, true},
      {"interfaces/engine/op.h", {"unistd.h", false}, false},
      {"interfaces/engine/op.h", {"boost/dll.hpp", false}, false},
      {"interfaces/engine/op.h", {"core/graph/graph.h", true}, false},
      {"plugins/sgd/sgd.cc", {"engine/plugin.h", true}, true},
      {"plugins/sgd/sgd.cc", {"sgd.cc", true}, true},
      {"plugins/sgd/sgd.cc", {"dnnl.hpp", false}, true},
      {"plugins/sgd/sgd.cc", {"adamw.cc", true}, false},
      {"plugins/sgd/sgd.cc", {"../adamw/adamw.cc", true}, false},
      {"plugins/sgd/sgd.cc", {"cuda_kit/error.h", true}, false},
      {"plugins/nccl/gpu.cc", {"cuda_kit/error.h", true}, true},
      {"plugins/nccl/gpu.cc", {"cuda_ops/blas.h", true}, false},
      {"plugins/sgd/sgd.cc", {"core/graph/graph.h", false}, false},
      {"plugins/sgd/sgd.cc", {"plugins/adamw/adamw.cc", true}, false},
      {"core/graph/graph.h", {"core/graph/device_buffer.h", true}, true},
      {"core/graph/graph.h", {"core/graph/builder.h", true}, true},
      {"core/graph/graph.h", {"engine/op.h", true}, true},
      {"core/graph/graph.h", {"builder.h", true}, false},
      {"core/graph/graph.h", {"core/exec/executor.h", true}, false},
      {"core/exec/executor.h", {"core/models/model.h", true}, false},
      {"core/train/trainer.h", {"app/cli/progress.h", true}, false},
      {"core/train/trainer.h", {"plugins/sgd/sgd.cc", true}, false},
      {"core/attic/x.h", {"core/graph/graph.h", true}, false},
      {"app/cli/main.cc", {"bench/bench.h", true}, true},
      {"app/cli/main.cc", {"bench/training/compare.h", true}, false},
      {"core/train/trainer.h", {"bench/bench.h", true}, false},
      {"bench/bench.h", {"core/base/store.h", true}, true},
      {"bench/bench.h", {"app/cli/commands.h", true}, false},
      {"bench/bench.cc", {"plugins/sgd/sgd.cc", true}, false},
  };
  for (const Example& example : examples) {
    EXPECT_EQ(Objection(root, example.file, example.include) == "", example.allowed)
        << example.file << " includes " << example.include.target;
  }
}

}  // namespace
}  // namespace engine
