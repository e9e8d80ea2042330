// How a plugin of these tests misbehaves, as its options say.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/host.h"
#include "engine/options.h"
#include "engine/status.h"

namespace engine::faulty {

// What no message may hand on as it is.
constexpr std::string_view kOddText = "odd\n\x1b[31m\x07/../name";

// On one rank, or on all, in these ways; those with a "*" on all in any case:
//
//   modes := mode ("," mode)*    mode := "*"? (word | field "=" number | call "." end)
//
//   word    an answer that is wrong in a way of its own
//   field   this one of an answer has this value
//   call    this one ends so: in an error, by a crash, or never
class Fault {
 public:
  Fault(Host& host, const Options& options)
      : rank_info_(host.rank_info()),
        is_set_(options.Int("rank") < 0 || rank_info_.rank == options.Int("rank")),
        modes_(options.String("mode")) {}

  const RankInfo& rank_info() const { return rank_info_; }
  bool Is(std::string_view mode) const { return Find(mode).first; }

  template <typename T>
  void Set(std::string_view field, T* value) const {
    const auto [found, text] = Find(std::string(field) + "=");
    int64_t number = 0;
    if (!found) return;
    std::from_chars(text.data(), text.data() + text.size(), number);
    *value = static_cast<T>(number);
  }

  Status At(std::string_view call) const noexcept {
    const auto [found, end] = Find(std::string(call) + ".");
    if (!found) return {};
    while (end == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (end == "throw") Throw();
    if (end == "segv") *reinterpret_cast<volatile int*>(nowhere_) = 1;
    if (end == "text") {
      return Status::Error(StatusCode::kDevice, "%s%s", std::string(kOddText).c_str(),
                           std::string(5000, 'x').c_str());
    }
    constexpr std::pair<std::string_view, int> kCodes[] = {
        {"ok", 0},     {"invalid", 1},      {"data", 5},      {"peer", 7},     {"aborted", 10},
        {"error", 13}, {"interrupted", 14}, {"internal", 15}, {"unknown", 99}, {"negative", -3}};
    for (const auto& [word, code] : kCodes) {
      if (end != word) continue;
      return Status::Error(static_cast<StatusCode>(code), "the cable was pulled")
          .WithRank(end == "peer" ? 7 : -1);
    }
    return {};
  }

 private:
  [[noreturn]] static void Throw() { throw std::runtime_error("no such cable"); }
  // Whether one of the modes is `mode`, or begins so where that ends in '=' or '.', and its rest.
  std::pair<bool, std::string_view> Find(std::string_view mode) const {
    const bool is_whole = mode.back() != '=' && mode.back() != '.';
    for (std::string_view rest = modes_; !rest.empty();) {
      std::string_view one = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      const bool counts = is_set_ || one.front() == '*';
      if (one.front() == '*') one.remove_prefix(1);
      if (!counts) continue;
      if (is_whole ? one == mode : one.starts_with(mode)) return {true, one.substr(mode.size())};
    }
    return {false, ""};
  }

  const RankInfo rank_info_;
  const bool is_set_;
  const std::string modes_;
  volatile uintptr_t nowhere_ = 4096;  // so that no compiler sees the fault
};

}  // namespace engine::faulty
