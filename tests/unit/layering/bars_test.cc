// Bounds on the size and shape of the sources, and words that they may not use.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/layering/sources.h"

namespace engine::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kProduct = {"interfaces", "core",  "app",
                                           "tools",      "bench", "plugins"};

std::vector<std::string> Everything() {
  std::vector<std::string> folders = kProduct;
  folders.emplace_back("tests");
  return folders;
}

struct Bound {
  std::vector<std::string> folders;
  size_t lines;
};

TEST(Sizes, StayBelowTheirBounds) {
  // interfaces/engine: the contracts with a line of fields for each struct, and abi/ below them. The
  // product has the conformance kit, which was tests before it was a program of the SDK.
  const Bound bounds[] = {{{"core"}, 5990},
                          {{"interfaces/engine"}, 2165},
                          {{"interfaces/engine/abi"}, 700},
                          {{"tools/conform"}, 8390},
                          {kProduct, 83995},
                          {{"tests"}, 43866},
                          {{"plugins/cuda_ops", "plugins/nccl", "plugins/cuda_kit"}, 10730},
                          {{"tests/emulated_cuda"}, 6835}};
  for (const Bound& bound : bounds) {
    const size_t lines = LinesOfCode(FilesBelow(bound.folders));
    EXPECT_LE(lines, bound.lines) << testing::PrintToString(bound.folders);
    EXPECT_GT(lines, bound.lines / 2) << "a bound far above what is there holds nothing";
  }
}

TEST(Sizes, NoFileIsLongerThan500Lines) {
  for (const std::string& file : FilesBelow(Everything())) {
    EXPECT_LE(LinesOf(TextOf(file)).size(), 500u) << file;
  }
}

TEST(Sizes, NoClassHasMoreThan30MemberFunctions) {
  int largest = 0;
  for (const std::string& file : FilesBelow(kProduct)) {
    for (const ClassSize& one : ClassesIn(TextOf(file))) {
      largest = std::max(largest, one.functions);
      EXPECT_LE(one.functions, 30) << one.name << " in " << file;
    }
  }
  EXPECT_GT(largest, 10) << "classes are not found";
}

TEST(Sizes, ClassesAreCountedByTheirDeclarations) {
  const auto classes = ClassesIn(R"(
    class Lamp final : public ObjectBase {
     public:
      explicit Lamp(int watts) : watts_{watts}, name_("a lamp") { Check(); }  // Lamp(int);
      ~Lamp() override;
      Lamp(Lamp&&) = default;
      bool operator==(const Lamp& other) const { return watts_ == other.watts_; }
      virtual void Switch(bool on) noexcept = 0;
      static std::function<void(int)> Listener();
      template <typename T>
      void Visit(T&& visitor) {
        if (visitor) visitor(*this);
      }

     private:
      friend void Print(const Lamp& lamp);
      using Callback = std::function<void(int)>;
      enum class State { kOn, kOff };
      struct Bulb {
        void Glow();
        int colour = 0;
      };
      int watts_ = Default(), more_{Default()};
      alignas(64) std::byte bytes_[4];
      std::function<void(int)> callback_ = [](int) {};
      std::string name_ = "f(x) {";
    };
    enum class Colour { kRed };
    struct Declared;)");
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].name, "Lamp");
  EXPECT_EQ(classes[0].functions, 7);
  EXPECT_EQ(classes[1].name, "Bulb");
  EXPECT_EQ(classes[1].functions, 1);
}

// Lines with a comment among all lines of the .cc files.
double ShareOfComments(const std::vector<std::string>& folders) {
  size_t lines = 0, with_comment = 0;
  for (const std::string& file : FilesBelow(folders, {".cc"})) {
    for (const std::string& line : LinesOf(Only(Keep::kComments, TextOf(file)))) {
      ++lines;
      with_comment += line.find_first_not_of(" \r") != std::string::npos;
    }
  }
  return static_cast<double>(with_comment) / static_cast<double>(lines);
}

TEST(Comments, StandWhereTheCodeIs) {
  EXPECT_GE(ShareOfComments({"core", "plugins"}), 0.08)
      << "state the invariants of threads, locks and formats beside them";
}

// Names of plugins that are words of their own in any text about training.
bool IsOrdinary(const std::string& name) {
  static const std::set<std::string> words = {"null",   "text",      "tokens", "net",
                                              "record", "synthetic", "images", "table"};
  return words.contains(name);
}

// As a whole word, so that "sgd" is not found in "asgd"; of an ordinary word only the string.
bool Names(const std::string& text, const std::string& plugin) {
  if (IsOrdinary(plugin)) return text.find("\"" + plugin + "\"") != std::string::npos;
  const auto is_part = [&text](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (size_t at = text.find(plugin); at != std::string::npos; at = text.find(plugin, at + 1)) {
    if (!is_part(at - 1) && !is_part(at + plugin.size())) return true;
  }
  return false;
}

TEST(Core, NamesNoPlugin) {
  std::vector<std::string> plugins = {"gloo"};
  for (const auto& entry : fs::directory_iterator(Root() / "plugins")) {
    if (entry.is_directory()) plugins.push_back(entry.path().filename());
  }
  ASSERT_GT(plugins.size(), 10u);
  for (const std::string& file : FilesBelow({"core"})) {
    const std::string text = TextOf(file);
    for (const std::string& plugin : plugins) {
      EXPECT_FALSE(Names(text, plugin)) << file << " names the plugin " << plugin;
    }
  }
  EXPECT_TRUE(Names("add the hook clip_norm", "clip_norm"));
  EXPECT_TRUE(Names("if (name == \"null\")", "null"));
  EXPECT_FALSE(Names("// null: none", "null"));
}

// The rows of docs/glossary.md: | retired | use |
std::vector<std::string> RetiredWords() {
  static const std::regex row(R"(^\|\s*([^|]*[^|\s])\s*\|\s*([^|]*[^|\s])\s*\|\s*$)");
  std::vector<std::string> retired;
  bool in_table = false;
  for (const std::string& line : LinesOf(TextOf("docs/glossary.md"))) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) {
      in_table = false;
    } else if (match[1] == "retired" && match[2] == "use") {
      in_table = true;
    } else if (in_table && match[1].str().find_first_not_of(":-") != std::string::npos) {
      retired.push_back(match[1]);
    }
  }
  return retired;
}

// "door" is in OpenServerDoor and in "doors", not in "outdoors"; "post box" is in PostBox.
bool Has(const std::vector<std::string>& words, const std::vector<std::string>& wanted) {
  const auto same = [](const std::string& word, const std::string& one) {
    const bool y = one.back() == 'y';
    return word == one || word == one + "s" || word == one + "es" ||
           (y && word == one.substr(0, one.size() - 1) + "ies");
  };
  return std::search(words.begin(), words.end(), wanted.begin(), wanted.end(), same) != words.end();
}

TEST(Words, AreFoundInNamesAndText) {
  const auto has = [](const char* text, const char* word) {
    return Has(WordsOf(text), WordsOf(word));
  };
  EXPECT_TRUE(has("Status OpenServerDoor(int fd);", "door"));
  EXPECT_TRUE(has("kMaxStrangers", "stranger"));
  EXPECT_TRUE(has("// its story, then", "story"));
  EXPECT_TRUE(has("two stories", "story"));
  EXPECT_TRUE(has("class PostBox", "post box"));
  EXPECT_TRUE(has("say_as_rank_zero", "say as"));
  EXPECT_FALSE(has("outdoors", "door"));
  EXPECT_FALSE(has("histories", "story"));
  EXPECT_FALSE(has("the largest", "guest"));
  EXPECT_FALSE(has("post the box", "post box"));
}

TEST(Words, RetiredOnesAreNotUsed) {
  const std::vector<std::string> retired = RetiredWords();
  ASSERT_GE(retired.size(), 10u) << "docs/glossary.md has a table | retired | use |";
  std::vector<std::string> files = FilesBelow(Everything());
  const std::vector<std::string> texts = FilesBelow(
      {"docs", "configs", "scripts", "plugins", "tests"}, {".md", ".pbtxt", ".sh", ".py"});
  files.insert(files.end(), texts.begin(), texts.end());
  files.insert(files.end(), {"README.md", "CONTRIBUTING.md", "app/config/engine.proto"});
  for (const std::string& file : files) {
    // The list itself, and this test of it.
    if (file == "docs/glossary.md" || file == "tests/unit/layering/bars_test.cc") continue;
    const std::vector<std::string> words = WordsOf(TextOf(file));
    for (const std::string& word : retired) {
      EXPECT_FALSE(Has(words, WordsOf(word))) << file << " says '" << word << "'";
    }
  }
}

}  // namespace
}  // namespace engine::test
