// The text of this repository, as tests of its shape look at it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace engine::test {

inline const std::filesystem::path& Root() {
  static const std::filesystem::path root = ENGINE_TEST_SOURCE_DIR;
  return root;
}

// Files below `folders` with one of the `extensions` (".cc"), relative to the root, sorted.
std::vector<std::string> FilesBelow(const std::vector<std::string>& folders,
                                    const std::vector<std::string>& extensions = {".h", ".cc",
                                                                                  ".cu", ".cuh"});

std::string TextOf(const std::string& file);
std::vector<std::string> LinesOf(const std::string& text);

struct Include {
  std::string target;
  bool quoted = false;  // "target", else <target>
};
std::vector<Include> IncludesOf(const std::string& file);

// Text of C++ with what is not of the named kinds replaced by spaces. Line ends stay.
enum class Keep { kCode, kComments, kStrings, kCodeAndStrings };
std::string Only(Keep keep, const std::string& text);

// Words in lower case, cut at whatever is no letter and at the humps of CamelCase.
std::vector<std::string> WordsOf(std::string_view text);

// Lines that are neither blank nor only a comment.
size_t LinesOfCode(const std::vector<std::string>& files);

// A class or struct and how many member functions it declares, inherited ones not counted.
struct ClassSize {
  std::string name;
  int functions = 0;
};
std::vector<ClassSize> ClassesIn(const std::string& text);

}  // namespace engine::test
