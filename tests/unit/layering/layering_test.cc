// The arrows of docs/architecture.md, read from the include lines:
//
//   interfaces/engine <- interfaces/kit <- plugins/*
//   interfaces/engine <- core/base <- core/{plugin,trace} <- core/graph <- core/exec <- core/train
//   core <- app/{plugins <- author, config, data, launch, checkpoint} <- app/{command, weights}
//        <- tools/trace <- app/run
//        <- tools/simulate, bench <- app/cli (main.cc only)
//   all of these <- tests
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/unit/layering/sources.h"

namespace engine::test {
namespace {

namespace fs = std::filesystem;

// Who may include what: a folder or file, and the folders that it sees beside itself and the SDK.
// Of several that fit a file the longest counts; a folder without any has no place in the house.
const std::map<std::string, std::vector<std::string>>& Arrows() {
  static const std::vector<std::string> ground = {"core",           "app/plugins", "app/config",
                                                  "app/data",       "app/model",   "app/launch",
                                                  "app/checkpoint", "app/command", "app/weights"};
  static const auto above = [](std::vector<std::string> more) {
    more.insert(more.end(), ground.begin(), ground.end());
    return more;
  };
  static const std::map<std::string, std::vector<std::string>> arrows = {
      {"core/base", {}},
      {"core/plugin", {"core/base"}},
      {"core/trace", {"core/base"}},
      {"core/graph", {"core/base", "core/plugin"}},
      {"core/exec", {"core/base", "core/plugin", "core/trace", "core/graph"}},
      {"core/train", {"core"}},
      {"app/plugins", {"core", "kit"}},
      {"app/config", {"core", "app/plugins"}},
      {"app/data", {"core", "kit"}},
      {"app/model", {"core"}},
      {"app/launch", {"core", "kit"}},
      {"app/checkpoint", {"core", "kit"}},
      {"app/weights", {"core", "kit", "app/config", "app/checkpoint", "onnx_kit"}},
      {"app/author", {"core", "kit", "app/plugins"}},
      {"app/command", {"core", "kit", "app/plugins", "app/config", "app/launch"}},
      {"tools/conform", above({"kit"})},
      {"tools/report", above({})},
      {"tools/trace", above({})},
      {"app/run", above({"kit", "tools/trace"})},
      {"tools/simulate", above({"tools/trace", "app/run"})},
      {"bench", above({"kit", "tools/report", "tools/trace", "app/run"})},
      {"app/cli", {"core", "app"}},
      {"app/cli/main.cc", {"core", "app", "tools", "bench"}},
  };
  return arrows;
}

bool IsBelow(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

std::string FirstOf(const std::string& path) {
  return path.substr(0, path.find('/'));
}

bool IsStandard(const Include& include) {
  // Headers of the C++ standard library have neither folder nor extension.
  return !include.quoted && include.target.find_first_of("/.") == std::string::npos;
}

// What the kernel and the C library give.
bool IsOfTheSystem(const Include& include) {
  static const std::set<std::string> headers = {
      "cxxabi.h",    "dlfcn.h",  "elf.h",    "execinfo.h", "fcntl.h",
      "immintrin.h", "link.h",   "malloc.h", "pthread.h",  "sched.h",
      "signal.h",    "stdlib.h", "time.h",   "ucontext.h", "unistd.h"};
  const std::string first = FirstOf(include.target);
  return !include.quoted && (headers.contains(include.target) || first == "sys" ||
                             first == "linux" || first == "netinet" || first == "arpa");
}

std::string InTheSdk(const std::string& file, const Include& include) {
  const std::string first = FirstOf(include.target);
  const bool kit = file.starts_with("interfaces/kit/");
  if (include.quoted && (first == "engine" || (kit && first == "kit"))) return "";
  if (IsStandard(include) || (kit && IsOfTheSystem(include))) return "";
  if (file == "interfaces/kit/digest.h" && include.target == "xxhash.h") return "";
  return kit ? "the kit includes the contracts, itself and what every system has"
             : "the contracts include the C++ standard library and themselves only";
}

std::string InAPlugin(const std::string& plugin, const Include& include) {
  const std::string first = FirstOf(include.target);
  static const std::set<std::string> ours = {"core", "app", "tools", "bench", "plugins", "tests"};
  if (ours.contains(first)) return "a plugin sees no part of the engine but its interfaces";
  if (!include.quoted || first == "engine" || first == "kit") return "";
  // What the plugins for NVIDIA GPUs share, and no plugin itself.
  if (first == "cuda_kit" && (plugin == "cuda_ops" || plugin == "nccl")) return "";
  // What the plugins over TCP connections share.
  const bool over_tcp =
      plugin == "tcp_kit" || plugin == "tcp" || plugin == "gloo" || plugin == "zmq_ps";
  if (first == "tcp_kit" && over_tcp) return "";
  // What the readers of data share.
  static const std::set<std::string> readers = {"data_kit", "images", "mnist", "table", "tokens"};
  if (first == "data_kit" && readers.contains(plugin)) return "";
  // What reads ONNX files, as app/weights does.
  if (first == "onnx_kit" && (plugin == "onnx_kit" || plugin == "onnx")) return "";
  fs::path source = include.target;
  if (include.target.ends_with(".pb.h")) source.replace_extension().replace_extension(".proto");
  if (fs::exists(Root() / "plugins" / plugin / source)) return "";
  return "a plugin includes engine/..., kit/... and its own folder only";
}

std::string InTheProduct(const std::string& file, const Include& include) {
  if (!include.quoted) {
    if (!file.starts_with("core/") || IsStandard(include) || IsOfTheSystem(include)) return "";
    return "core stands on the C++ standard library and the system alone";
  }
  if (FirstOf(include.target) == "engine") return "";
  const std::pair<const std::string, std::vector<std::string>>* place = nullptr;
  for (const auto& arrow : Arrows()) {
    if (IsBelow(file, arrow.first)) place = &arrow;  // sorted: the longest comes last
  }
  if (place == nullptr) return "this folder has no place: give it one in layering_test.cc";
  const auto [folder, seen] = *place;
  const bool allowed =
      IsBelow(include.target, fs::path(folder).extension() == ".cc" ? FirstOf(folder) : folder) ||
      std::any_of(seen.begin(), seen.end(),
                  [&](const std::string& other) { return IsBelow(include.target, other); });
  return allowed ? "" : folder + " stands below or beside it";
}

// Why `file` (relative to the root) may not have this include, or "".
std::string Objection(const std::string& file, const Include& include) {
  if (include.target.find("..") != std::string::npos) return "includes are rooted";
  const std::string first = FirstOf(file);
  if (first == "interfaces") return InTheSdk(file, include);
  if (first != "plugins") return InTheProduct(file, include);
  const std::string in_plugins = file.substr(first.size() + 1);
  return InAPlugin(FirstOf(in_plugins), include);
}

class Layering : public testing::TestWithParam<std::string> {};

TEST_P(Layering, IncludesPointOneWay) {
  const std::vector<std::string> files = FilesBelow({GetParam()});
  ASSERT_THAT(files, testing::Not(IsEmpty()));
  size_t includes = 0;
  for (const std::string& file : files) {
    for (const Include& include : IncludesOf(file)) {
      ++includes;
      EXPECT_EQ(Objection(file, include), "") << file << " includes " << include.target;
    }
  }
  EXPECT_GT(includes, files.size() / 2);
}

TEST_P(Layering, NoHeaderIsAnUmbrella) {
  for (const std::string& file : FilesBelow({GetParam()})) {
    const std::vector<std::string> lines = LinesOf(Only(Keep::kCodeAndStrings, TextOf(file)));
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                            [](const std::string& line) {
                              const size_t begin = line.find_first_not_of(" \t\r");
                              return begin != std::string::npos && line[begin] != '#';
                            }))
        << file << " only includes others";
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, Layering,
                         testing::Values("interfaces", "core", "app", "tools", "bench", "plugins"),
                         [](const auto& folder) { return folder.param; });

// The folder that a file, or what it includes, lies in: two levels, of the SDK as it is included.
std::string FolderOf(const std::string& path) {
  const std::string first = FirstOf(path);
  if (first == "engine" || first == "kit") return "interfaces/" + first;
  const std::string second = FirstOf(path.substr(std::min(first.size() + 1, path.size())));
  const bool two = path.find('/', first.size() + 1) != std::string::npos;
  return two ? first + "/" + second : first;
}

TEST(Folders, FormNoCircle) {
  static const std::set<std::string> ours = {"engine", "kit", "core", "app", "tools", "bench"};
  std::map<std::string, std::set<std::string>> seen;
  for (const std::string& file : FilesBelow({"interfaces", "core", "app", "tools", "bench"})) {
    for (const Include& include : IncludesOf(file)) {
      if (!include.quoted || !ours.contains(FirstOf(include.target))) continue;
      const std::string from = FolderOf(file), to = FolderOf(include.target);
      if (from != to) seen[from].insert(to);
    }
  }
  ASSERT_GT(seen.size(), 10u);
  // Depth first: a folder that is met again while it is being looked at closes a circle.
  std::map<std::string, bool> done;
  const std::function<void(const std::string&, const std::string&)> look =
      [&](const std::string& folder, const std::string& way) {
        const auto [it, first] = done.emplace(folder, false);
        if (!first) {
          EXPECT_TRUE(it->second) << "a circle: " << way << folder;
          return;
        }
        for (const std::string& next : seen[folder]) look(next, way + folder + " -> ");
        done[folder] = true;
      };
  for (const auto& [folder, others] : std::map(seen)) look(folder, "");
}

// The link lines say the same as the include lines.
TEST(Core, LinksNothingBesideBoost) {
  static const std::regex word(R"([A-Za-z_]\w*(::\w+)?)");
  static const std::set<std::string> allowed = {"Threads::Threads", "Boost::headers",
                                                "CMAKE_DL_LIBS"};
  const std::vector<std::string> files = FilesBelow({"core"}, {".txt"});
  ASSERT_GT(files.size(), 5u);
  for (const std::string& file : files) {
    const std::string text = TextOf(file);
    std::set<std::string> names;
    for (size_t at = text.find("LINK "); at != std::string::npos; at = text.find("LINK ", at + 1)) {
      const std::string list = text.substr(at + 5, text.find(')', at) - at - 5);
      for (auto it = std::sregex_iterator(list.begin(), list.end(), word);
           it != std::sregex_iterator(); ++it) {
        names.insert(it->str());
      }
    }
    EXPECT_EQ(text.find("target_link_libraries"), std::string::npos) << file;
    for (const std::string& name : names) {
      const bool ours = name.starts_with("engine_") && fs::exists(Root() / "core" / name.substr(7));
      EXPECT_TRUE(ours || name == "PRIVATE_LINK" || allowed.contains(name))
          << file << " links " << name;
    }
  }
}

struct Example {
  const char* file;
  std::vector<std::string> allowed, refused;  // "target" or <target>
};

TEST(LayeringRules, TellGoodFromBad) {
  const Example examples[] = {
      {"interfaces/engine/op.h",
       {"engine/device.h", "<span>"},
       {"kit/op.h", "<unistd.h>", "<boost/dll.hpp>", "core/graph/graph.h"}},
      {"interfaces/kit/op.h", {"engine/op.h", "kit/hook.h", "<time.h>"}, {"<zlib.h>"}},
      {"plugins/sgd/sgd.cc",
       {"engine/plugin.h", "kit/optimizer.h", "sgd.cc", "<dnnl.hpp>"},
       {"adamw.cc", "../adamw/adamw.cc", "cuda_kit/error.h", "<core/graph/graph.h>",
        "plugins/adamw/adamw.cc"}},
      {"plugins/nccl/gpu.cc", {"cuda_kit/error.h"}, {"cuda_ops/blas.h", "data_kit/csv.h"}},
      {"plugins/table/table.cc", {"data_kit/csv.h"}, {"images/image.h", "cuda_kit/error.h"}},
      {"core/graph/graph.h",
       {"core/graph/program.h", "engine/op.h", "core/plugin/plugin_set.h"},
       {"program.h", "kit/op.h", "core/exec/executor.h", "app/model/graph_builder.h"}},
      {"core/base/abort_signal.cc", {"<sys/stat.h>"}, {"<sodium.h>"}},
      {"core/train/trainer.h",
       {"core/exec/executor.h"},
       {"app/config/config.h", "plugins/sgd/sgd.cc", "bench/bench.h", "tests/support/toy_ops.h"}},
      {"core/attic/x.h", {}, {"core/graph/graph.h"}},
      {"app/config/config.h",
       {"app/plugins/catalog.h", "core/train/run_config.h", "<boost/dll/shared_library.hpp>"},
       {"app/launch/launch.h"}},
      {"tools/trace/trace_file.cc", {}, {"app/run/write_trace.h"}},
      {"tools/simulate/study.cc", {"app/run/training.h"}, {"app/cli/commands.h", "bench/bench.h"}},
      {"app/cli/main.cc", {"bench/cli/command.h", "app/cli/commands.h"}, {}},
      {"app/cli/run_command.cc", {"app/run/training.h"}, {"bench/cli/command.h"}},
      {"bench/bench.h", {"tools/report/svg.h"}, {"app/cli/commands.h", "plugins/sgd/sgd.cc"}},
  };
  const auto objection = [](const Example& example, const std::string& include) {
    const bool quoted = include.front() != '<';
    return Objection(example.file,
                     {quoted ? include : include.substr(1, include.size() - 2), quoted});
  };
  for (const Example& example : examples) {
    SCOPED_TRACE(example.file);
    for (const std::string& include : example.allowed) EXPECT_EQ(objection(example, include), "");
    for (const std::string& include : example.refused) {
      EXPECT_NE(objection(example, include), "") << include;
    }
  }
}

// A folder that no list names is not built, and its tests pass by not being there.
TEST(Tests, EachFolderIsInTheListAboveIt) {
  static const std::regex word(R"([\w./$]+)");
  for (const std::string& file : FilesBelow({"tests"}, {".txt"})) {
    const bool out_of_tree = TextOf(file).find("project(") != std::string::npos;
    if (!file.ends_with("/CMakeLists.txt") || out_of_tree) continue;
    const fs::path folder = fs::path(file).parent_path();
    fs::path above = folder.parent_path();
    while (!fs::exists(Root() / above / "CMakeLists.txt")) above = above.parent_path();
    const std::string list = TextOf((above / "CMakeLists.txt").string());
    const std::set<std::string> words(std::sregex_token_iterator(list.begin(), list.end(), word),
                                      std::sregex_token_iterator());
    EXPECT_TRUE(words.contains(folder.filename().string()) ||
                words.contains(folder.lexically_relative(above).string()))
        << above.string() << "/CMakeLists.txt does not add " << folder.string();
  }
}

}  // namespace
}  // namespace engine::test
