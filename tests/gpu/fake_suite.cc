// Tests that end in every way in which a program of tests/gpu/run.sh can end, for scripts_test.py.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace {

TEST(Suite, Passes) {}

TEST(Suite, Fails) {
  EXPECT_EQ(1, 2);
}

TEST(Suite, Skips) {
  GTEST_SKIP() << "there is no such device";
}

TEST(Suite, Crashes) {
  (void)std::signal(SIGSEGV, SIG_DFL);  // also where a sanitizer would catch it
  (void)std::raise(SIGSEGV);
}

TEST(Suite, Hangs) {
  std::this_thread::sleep_for(std::chrono::minutes(5));
}

// As one may that waits for a GPU in the kernel.
TEST(Suite, HangsAndIgnoresSignals) {
  (void)std::signal(SIGTERM, SIG_IGN);
  std::this_thread::sleep_for(std::chrono::minutes(5));
}

}  // namespace
