// The matchers of GoogleMock that many tests use, by their own names.
#pragma once

#include <gmock/gmock.h>

namespace engine {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

}  // namespace engine
