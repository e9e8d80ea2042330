// Optimal string alignment: Levenshtein with swaps of neighbours, of which no part is edited twice.

#include "app/plugins/words.h"

#include <algorithm>

namespace engine::plugins {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Row i holds the distances between the first i letters of `a` and every prefix of `b`.
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64;  // bounds the work on garbage
  if (word.size() > kLongestWord) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestWord) continue;
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

std::string Join(const std::vector<std::string>& words, std::string_view separator) {
  std::string list;
  for (const std::string& word : words) list.append(list.empty() ? "" : separator).append(word);
  return list;
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> words;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != text.npos; begin = end + 1) {
    words.emplace_back(text.substr(begin, end - begin));
  }
  words.emplace_back(text.substr(begin));
  return words;
}

}  // namespace engine::plugins
