#include "core/plugin/nearest.h"

#include <gtest/gtest.h>

namespace engine::plugin {
namespace {

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::vector<std::string> words = {"steps", "epochs", "beta1", "beta2", "learning_rate"};
  EXPECT_EQ(Nearest("stepps", words), "steps");
  EXPECT_EQ(Nearest("setps", words), "steps") << "a swap is one change";
  EXPECT_EQ(Nearest("beta9", words), "beta1") << "of equals the first";
  EXPECT_EQ(Nearest("lerning_rat", words), "learning_rate");
  EXPECT_EQ(Nearest("momentum", words), "");
  EXPECT_EQ(Nearest("", words), "");
  EXPECT_EQ(Nearest(std::string(100000, 'a'), words), "");
  EXPECT_EQ(Nearest("x", {}), "");
  EXPECT_EQ(Nearest("x", {"y"}), "") << "nothing of the word would be left";
}

TEST(Nearest, MakesAPhrase) {
  EXPECT_EQ(DidYouMean("stpes", {"steps"}), "; did you mean 'steps'?");
  EXPECT_EQ(DidYouMean("zzz", {"steps"}), "");
  EXPECT_EQ(Join({"a", "b"}), "a, b");
}

}  // namespace
}  // namespace engine::plugin
