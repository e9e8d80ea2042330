// What `engine conform` demands stands in the headers of the SDK, and these explain themselves.
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/layering/sources.h"

namespace engine::test {
namespace {

using Matches = std::sregex_iterator;

// All comments of a file as one text, without markers and line ends.
std::string CommentsOf(const std::string& file) {
  std::string comments;
  std::istringstream words(Only(Keep::kComments, TextOf(file)));
  for (std::string word; words >> word;) {
    if (word != "//") comments += word + ' ';
  }
  return comments;
}

TEST(Contracts, StandInTheHeadersTheyName) {
  static const std::regex constant(R"re((k\w*Header)(?:\[\])? = "([^"]*)")re"),
      contract(
          R"re((?:CONTRACT\(\s*\w+,\s*"?([^",]*)"?,|MUST\(|SHOULD\()\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\))re"),
      literal(R"re("((?:[^"\\]|\\.)*)")re"), escape(R"re(\\(.))re"),
      name(R"(\b(CONTRACT|MUST|SHOULD)\()");
  std::map<std::string, std::string> comments;
  std::ptrdiff_t found = 0;
  for (const std::string& file : FilesBelow({"tools/conform"}, {".cc"})) {
    const std::string text = TextOf(file);
    std::map<std::string, std::string> headers;
    for (Matches it(text.begin(), text.end(), constant), end; it != end; ++it) {
      headers[(*it)[1]] = (*it)[2];
    }
    const Matches begin(text.begin(), text.end(), contract), end;
    for (Matches it = begin; it != end; ++it, ++found) {
      const std::string arguments = (*it)[2];
      std::string sentence;
      for (Matches part(arguments.begin(), arguments.end(), literal); part != end; ++part) {
        sentence += std::regex_replace((*part)[1].str(), escape, "$1");
      }
      const auto known = headers.find((*it)[1].matched ? (*it)[1].str() : "kHeader");
      const std::string header = known == headers.end() ? (*it)[1].str() : known->second;
      std::string& all = comments[header];
      if (all.empty()) all = CommentsOf("interfaces/" + header);
      // Without its first letter and its full stop: in the header it may be a part of a sentence.
      EXPECT_NE(all.find(sentence.substr(1, sentence.size() - 2)), std::string::npos)
          << file << ": interfaces/" << header << " does not say: " << sentence;
    }
    EXPECT_EQ(std::distance(begin, end),
              std::distance(Matches(text.begin(), text.end(), name), end))
        << file << ": a CONTRACT that this test does not understand";
  }
  EXPECT_GT(found, 100);
}

TEST(Contracts, AreALargePartOfTheHeaders) {
  size_t all = 0, all_comments = 0;
  for (const std::string& file : FilesBelow({"interfaces/engine"}, {".h"})) {
    size_t lines = 0, comments = 0;
    const std::vector<std::string> text = LinesOf(TextOf(file)),
                                   kept = LinesOf(Only(Keep::kComments, TextOf(file)));
    for (size_t i = 0; i < text.size(); ++i) {
      lines += text[i].find_first_not_of(' ') != std::string::npos;
      comments += kept[i].find_first_not_of(' ') != std::string::npos;
    }
    const bool is_machinery = file.starts_with("interfaces/engine/abi/");
    EXPECT_GE(comments * 10, lines * (is_machinery ? 2 : 3)) << file;
    all += is_machinery ? 0 : lines;
    all_comments += is_machinery ? 0 : comments;
  }
  EXPECT_GE(all_comments * 10, all * 4);
}

}  // namespace
}  // namespace engine::test
