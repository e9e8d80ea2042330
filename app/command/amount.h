// Amounts as people write them: a number and a unit.
#pragma once

#include <cctype>
#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine::command {

struct Unit {
  std::string_view name;  // in small letters; those of `text` may be large
  double factor;
};

// "375mbit", "45MB/s": the number times the factor of its unit, if that lies in [least, most]; else
// kInvalidArgument "<flag> '<text>' is no <what>".
inline Result<double> ParseAmount(const char* flag, std::string_view text,
                                  std::initializer_list<Unit> units, double least, double most,
                                  const char* what) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (const char c : text.substr(static_cast<size_t>(end - text.data()))) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Unit& known : units) {
    const double amount = number * known.factor;
    if (error == std::errc() && unit == known.name && amount >= least && amount <= most) {
      return amount;
    }
  }
  return Status::Error(StatusCode::kInvalidArgument, "%s '%.*s' is no %s", flag,
                       static_cast<int>(text.size()), text.data(), what);
}

}  // namespace engine::command
