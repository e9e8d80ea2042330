#include "tests/unit/layering/sources.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

namespace engine::test {

namespace fs = std::filesystem;

std::vector<std::string> FilesBelow(const std::vector<std::string>& folders,
                                    const std::vector<std::string>& extensions) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(Root() / folder)) {
      const std::string extension = entry.path().extension().string();
      if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
      files.push_back(entry.path().lexically_relative(Root()).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string TextOf(const std::string& file) {
  std::ifstream stream(Root() / file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<Include> IncludesOf(const std::string& file) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> includes;
  for (const std::string& line : LinesOf(TextOf(file))) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) includes.push_back({match[2], match[1] == "\""});
  }
  return includes;
}

namespace {

// Where the comment, string or character at `begin` ends; `begin` itself if none is there.
size_t EndOfComment(const std::string& text, size_t begin) {
  if (text.compare(begin, 2, "//") == 0) return std::min(text.find('\n', begin), text.size());
  if (text.compare(begin, 2, "/*") != 0) return begin;
  const size_t end = text.find("*/", begin + 2);
  return end == std::string::npos ? text.size() : end + 2;
}

size_t EndOfString(const std::string& text, size_t begin) {
  const char quote = text[begin];
  const char before = begin == 0 ? ' ' : text[begin - 1];
  if (quote != '"' && quote != '\'') return begin;
  if (quote == '\'' && std::isxdigit(static_cast<unsigned char>(before))) return begin;  // 1'000
  if (quote == '"' && before == 'R') {
    const size_t open = text.find('(', begin);
    std::string closing = ")";
    closing.append(text, begin + 1, open - begin - 1).append(1, '"');
    const size_t end = text.find(closing, open);
    return end == std::string::npos ? text.size() : end + closing.size();
  }
  for (size_t at = begin + 1; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == quote || text[at] == '\n') {
      return at + 1;
    }
  }
  return text.size();
}

}  // namespace

std::string Only(Keep keep, const std::string& text) {
  std::string kept = text;
  const auto blank = [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; ++at) {
      if (kept[at] != '\n') kept[at] = ' ';
    }
  };
  for (size_t at = 0; at < text.size();) {
    const size_t comment = EndOfComment(text, at);
    const size_t string = comment > at ? at : EndOfString(text, at);
    const size_t end = std::max({comment, string, at + 1});
    const bool wanted = comment > at  ? keep == Keep::kComments
                        : string > at ? keep == Keep::kStrings || keep == Keep::kCodeAndStrings
                                      : keep == Keep::kCode || keep == Keep::kCodeAndStrings;
    if (!wanted) blank(at, end);
    at = end;
  }
  return kept;
}

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false, lower_before = false;
  for (const char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    const bool hump = std::isupper(letter) != 0 && lower_before;
    if (std::isalpha(letter) == 0) {
      inside = lower_before = false;
      continue;
    }
    if (!inside || hump) words.emplace_back();
    words.back() += static_cast<char>(std::tolower(letter));
    inside = true;
    lower_before = std::islower(letter) != 0;
  }
  return words;
}

size_t LinesOfCode(const std::vector<std::string>& files) {
  size_t lines = 0;
  for (const std::string& file : files) {
    for (const std::string& line : LinesOf(TextOf(file))) {
      const size_t begin = line.find_first_not_of(" \t\r");
      lines += begin != std::string::npos && line.compare(begin, 2, "//") != 0;
    }
  }
  return lines;
}

namespace {

// Without what is between angle brackets, and what follows a "=" that is no operator: neither says
// whether a member is a function.
std::string Declarator(std::string member) {
  static const std::regex alignment(R"(alignas\s*\([^)]*\))"),
      angles(R"(<[^<>()]*(\([^<>]*\))?[^<>]*>)");
  member = std::regex_replace(member, alignment, "");
  for (std::string before; before != member;) {
    before = member;
    member = std::regex_replace(member, angles, "");
  }
  const size_t equals = member.find('=');
  const bool is_operator = member.find("operator") != std::string::npos;
  return equals == std::string::npos || is_operator ? member : member.substr(0, equals);
}

bool IsFunction(const std::string& member) {
  static const std::regex other(
      R"(^\s*(using|friend|typedef|static_assert|enum|class|struct|union|template\s*<[^>]*>\s*(class|struct|friend|using))\b)");
  if (std::regex_search(member, other)) return false;
  static const std::regex call(R"([A-Za-z_~>\]=+*/!<\-]\s*\()");
  return std::regex_search(Declarator(member), call);
}

size_t EndOfBraces(const std::string& code, size_t open) {
  int depth = 0;
  for (size_t at = open; at < code.size(); ++at) {
    depth += code[at] == '{' ? 1 : code[at] == '}' ? -1 : 0;
    if (depth == 0) return at;
  }
  return code.size();
}

// The functions among the members of the class whose body begins after `open`: a member ends with
// ";", or with a body in braces.
int CountFunctions(const std::string& code, size_t open, size_t close) {
  static const std::regex access(R"(\b(public|private|protected)\s*:)");
  int functions = 0;
  std::string member;
  for (size_t at = open + 1; at < close; ++at) {
    const char c = code[at];
    if (c == '{') {
      at = EndOfBraces(code, at);
      const size_t next = code.find_first_not_of(" \n\t", at + 1);
      const bool goes_on = next < close && (code[next] == ';' || code[next] == ',');
      if (goes_on) continue;  // an initialiser: the member ends with its ";"
    } else if (c != ';') {
      member += c;
      continue;
    }
    functions += IsFunction(std::regex_replace(member, access, ""));
    member.clear();
  }
  return functions;
}

}  // namespace

std::vector<ClassSize> ClassesIn(const std::string& text) {
  static const std::regex head(
      R"(\b(class|struct)\s+(?:\[\[[^\]]*\]\]\s*)?(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*(?:final\s*)?(?::[^;{()]*)?\{)");
  static const std::regex directive(R"((^|\n)[ \t]*#[^\n]*)");
  const std::string code = std::regex_replace(Only(Keep::kCode, text), directive, "\n");
  std::vector<ClassSize> classes;
  for (auto it = std::sregex_iterator(code.begin(), code.end(), head); it != std::sregex_iterator();
       ++it) {
    const auto open = static_cast<size_t>(it->position() + it->length() - 1);
    if (it->position() >= 5 &&
        code.compare(static_cast<size_t>(it->position()) - 5, 5, "enum ") == 0)
      continue;
    classes.push_back({(*it)[2], CountFunctions(code, open, EndOfBraces(code, open))});
  }
  return classes;
}

}  // namespace engine::test
