// What tests say of a Status and of a Result:
//
//   const Trace trace = ValueOf(ReadTrace(path));
//   EXPECT_THAT(WriteText(path, "x"), IsOk());
//   EXPECT_THAT(ReadTrace(path), FailsWith(StatusCode::kBadData, HasSubstr("it is empty")));
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "engine/status.h"
#include "tests/support/matchers.h"

namespace engine {

inline const Status& StatusOf(const Status& status) {
  return status;
}
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

// The value; without one the test ends, and fails with the message. Not on a thread of its own.
template <typename T>
T ValueOf(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg).message();
  return StatusOf(arg).ok();
}

// `message` is a text or a matcher of one.
MATCHER_P2(FailsWith, code, message, "") {
  const Status& status = StatusOf(arg);
  *result_listener << "code " << static_cast<int>(status.code()) << ": " << status.message();
  return status.code() == code && ::testing::Matches(message)(std::string(status.message()));
}
template <typename Code>
auto FailsWith(Code code) {
  return FailsWith(code, ::testing::_);
}

}  // namespace engine
