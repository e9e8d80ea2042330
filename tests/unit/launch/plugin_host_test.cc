#include "app/launch/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>
#include <stdexcept>

#include "app/launch/log.h"
#include "core/base/memory_store.h"

namespace engine {
namespace {

class PluginHostTest : public testing::Test {
 protected:
  PluginHost MakeHost(const char* plugin) {
    return PluginHost(plugin, context_, &device_, logger_,
                      [this](std::string_view name, double value) {
                        if (name == "bad") throw std::runtime_error("disk full");
                        metrics_ << name << '=' << value << ';';
                      });
  }

  AbortSignal abort_;
  MemoryStore store_{std::make_shared<MemoryTable>(), abort_};
  std::atomic<int> stop_{0};
  RankContext context_{{1, 2, 0, 1}, store_, abort_, stop_};
  Device* device_ = nullptr;
  std::ostringstream lines_, metrics_;
  std::shared_ptr<spdlog::logger> logger_ = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(lines_));
};

TEST_F(PluginHostTest, KeysArePrivateToThePlugin) {
  PluginHost a = MakeHost("a"), b = MakeHost("b");
  const uint8_t value[] = {0, 1, 255};
  ASSERT_TRUE(a.StoreSet("k", value).ok());
  std::string read;
  ASSERT_TRUE(a.StoreGetString("k", 1000, &read).ok());
  EXPECT_EQ(read, std::string("\0\1\xff", 3));
  bool exists = true;
  ASSERT_TRUE(b.StoreHas("k", &exists).ok());
  EXPECT_FALSE(exists);
  EXPECT_TRUE(*store_.Has("plugin/a/k"));
  Status status = b.StoreGetString("k", 1, &read);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), testing::HasSubstr("plugin/b/k"));
}

TEST_F(PluginHostTest, AnAbortIsAPeerError) {
  PluginHost host = MakeHost("a");
  abort_.Raise(Status::Error(StatusCode::kTimeout, "no progress"));
  bool exists = false;
  std::string read;
  for (const Status& status : {host.StoreSet("k", {}), host.StoreHas("k", &exists),
                               host.StoreGetString("k", 1000, &read)}) {
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_STREQ(status.message(), "no progress");
  }
}

TEST_F(PluginHostTest, KnowsItsRankAndDevice) {
  PluginHost host = MakeHost("a");
  EXPECT_EQ(host.rank_info().rank, 1);
  EXPECT_EQ(host.rank_info().world_size, 2);
  EXPECT_EQ(host.device(), nullptr);
  Device* later = reinterpret_cast<Device*>(&lines_);  // never dereferenced
  device_ = later;
  EXPECT_EQ(host.device(), later);
}

TEST_F(PluginHostTest, LogsAndMeasures) {
  logger_->set_pattern("%L %v");
  PluginHost host = MakeHost("tcp");
  host.Log(LogLevel::kWarning, "slow {} link");  // braces of a plugin are text
  host.Metric("bytes", 3);
  host.Metric("bad", 1);
  EXPECT_EQ(metrics_.str(), "bytes=3;");
  EXPECT_EQ(lines_.str(), "W tcp: slow {} link\nW tcp: disk full\n");
}

TEST(MakeRankLogger, PrefixesTheRankWhenThereAreSeveral) {
  testing::internal::CaptureStderr();
  MakeRankLogger(1, 2, spdlog::level::info)->warn("hello");
  MakeRankLogger(0, 1, spdlog::level::info)->info("alone");
  MakeRankLogger(0, 1, spdlog::level::info)->debug("not shown");
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::ContainsRegex("^[0-9:.]+ W \\[rank 1\\] hello\n[0-9:.]+ I alone\n$"));
  EXPECT_EQ(spdlog::get("rank1"), nullptr);
}

TEST(MakeMemberLogger, PrefixesTheServer) {
  testing::internal::CaptureStderr();
  MakeMemberLogger({.rank = 1, .servers = 2, .is_server = 1}, spdlog::level::info)->warn("hello");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("^[0-9:.]+ W \\[server 1\\] hello\n$"));
}

}  // namespace
}  // namespace engine
