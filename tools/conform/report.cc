#include "tools/conform/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace engine::conform {
namespace {

constexpr size_t kColumns = 80, kSuiteColumn = 24, kMostFound = 600;

const char* NameOf(Outcome outcome) {
  constexpr const char* kNames[] = {"passed", "failed", "skipped"};
  return kNames[static_cast<size_t>(outcome)];
}

const char* LevelOf(const TestResult& test) {
  return test.must() ? "must" : "should";
}

// Words of a plugin on a terminal: one line without control characters, and cut.
std::string Plain(std::string text) {
  if (text.size() > kMostFound) text = text.substr(0, kMostFound) + " ...";
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return text;
}

// "  title   words", further lines below the words. A word is never broken.
std::string Paragraph(const std::string& title, const std::string& text, size_t indent = 12) {
  std::string out = "  " + title;
  out.resize(indent, ' ');
  size_t column = indent;
  std::istringstream words(Plain(text));
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    const std::string gap = column > indent ? " " : "";
    out += gap + word;
    column += gap.size() + word.size();
  }
  return out + "\n";
}

std::string Repeat(const Judgement& judgement, const TestResult& test) {
  const std::string seed = test.seed.empty() ? "" : " --seed " + test.seed;
  return judgement.repeat + " --suite " + test.suite + "." + test.test + seed;
}

int Count(const SuiteResult& suite, Outcome outcome) {
  const auto count = std::ranges::count(suite.tests, outcome, &TestResult::outcome);
  return static_cast<int>(count);
}

int CountOf(const Judgement& judgement, bool must, bool failed_only) {
  int count = 0;
  for (const SuiteResult& suite : judgement.suites) {
    for (const TestResult& test : suite.tests) {
      const bool counts =
          failed_only ? test.outcome == Outcome::kFailed : test.outcome != Outcome::kSkipped;
      count += test.must() == must && counts;
    }
  }
  return count;
}

std::string Score(const Judgement& judgement, bool must) {
  const int ran = judgement.Ran(must);
  return std::string(must ? "must " : "should ") + std::to_string(ran - judgement.Failed(must)) +
         "/" + std::to_string(ran);
}

std::string TitleOf(const plugins::PluginFile& file) {
  return file.name + (file.version.empty() ? "" : " " + file.version);
}

std::string AbiOf(const plugins::PluginFile& file) {
  return std::to_string(file.abi_major) + "." + std::to_string(file.abi_minor);
}

std::string SuiteLine(const SuiteResult& suite) {
  if (!suite.absent.empty())
    return Paragraph(suite.suite->name, "not judged: " + suite.absent, kSuiteColumn);
  std::string text;
  for (const Outcome outcome : {Outcome::kPassed, Outcome::kFailed, Outcome::kSkipped}) {
    const int count = Count(suite, outcome);
    if (count == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + NameOf(outcome);
  }
  return Paragraph(suite.suite->name, text, kSuiteColumn);
}

}  // namespace

int Judgement::Ran(bool must) const {
  return CountOf(*this, must, false);
}

int Judgement::Failed(bool must) const {
  return CountOf(*this, must, true);
}

std::string Text(const Judgement& judgement) {
  const plugins::PluginFile& file = judgement.file;
  std::string text = TitleOf(file) + ", " + Name(file.kind) + ", plugin ABI " + AbiOf(file) + ": " +
                     file.path + "\n\n";
  for (const SuiteResult& suite : judgement.suites) text += SuiteLine(suite);
  for (const SuiteResult& suite : judgement.suites) {
    for (const TestResult& test : suite.tests) {
      if (test.outcome != Outcome::kFailed) continue;
      text += "\nFAILED (" + std::string(LevelOf(test)) + ") " + test.suite + "." + test.test +
              (test.seed.empty() ? "" : ", seed " + test.seed) + "\n";
      text += Paragraph("contract", test.header + ": " + test.sentence);
      text += Paragraph("found", test.message);
      text += "  repeat    " + Plain(Repeat(judgement, test)) + "\n";
    }
  }
  return text + "\n" + Score(judgement, true) + ", " + Score(judgement, false) + " passed\n";
}

std::string Json(const Judgement& judgement) {
  using nlohmann::json;
  const plugins::PluginFile& file = judgement.file;
  json tests = json::array(), absent = json::object();
  for (const SuiteResult& suite : judgement.suites) {
    if (!suite.absent.empty()) absent[suite.suite->name] = suite.absent;
    for (const TestResult& test : suite.tests) {
      tests.push_back({{"suite", test.suite},
                       {"test", test.test},
                       {"level", LevelOf(test)},
                       {"header", test.header},
                       {"contract", test.sentence},
                       {"outcome", NameOf(test.outcome)},
                       {"message", test.message},
                       {"seed", test.seed},
                       {"repeat", Repeat(judgement, test)}});
    }
  }
  const auto score = [&](bool must) {
    return json{{"ran", judgement.Ran(must)}, {"failed", judgement.Failed(must)}};
  };
  const json all = {{"plugin", file.name},
                    {"version", file.version},
                    {"kind", Name(file.kind)},
                    {"abi", AbiOf(file)},
                    {"compiler", file.compiler},
                    {"file", file.path},
                    {"engine", ENGINE_VERSION},
                    {"must", score(true)},
                    {"should", score(false)},
                    {"not_judged", absent},
                    {"tests", tests}};
  return all.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

std::string Badge(const Judgement& judgement) {
  const plugins::PluginFile& file = judgement.file;
  const bool conforms = judgement.Failed(true) == 0;
  return "**" + Plain(TitleOf(file)) + "** (" + Name(file.kind) + ", plugin ABI " + AbiOf(file) +
         ") " + (conforms ? "conforms" : "does not conform") + ": " + Score(judgement, true) +
         ", " + Score(judgement, false) + ", judged by engine " ENGINE_VERSION "\n";
}

}  // namespace engine::conform
