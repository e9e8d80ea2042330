// Lists of words, and the one that a user probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace engine::plugins {

// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours
// (optimal string alignment); of equals the first. Empty when none is near: more than a third of
// the letters would change.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean 'beta1'?", or "" when nothing is near.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates);

// "a, b, c", as lists stand in messages.
std::string Join(const std::vector<std::string>& words, std::string_view separator = ", ");

// "a,b,c" -> a, b, c; one empty word of an empty text.
std::vector<std::string> Split(std::string_view text, char separator);

}  // namespace engine::plugins
