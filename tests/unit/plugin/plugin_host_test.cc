#include "core/plugin/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

#include "tests/unit/plugin/logging_rank.h"

namespace engine::plugin {
namespace {

class PluginHostTest : public testing::Test {
 protected:
  PluginHost MakeHost(const char* plugin) {
    return PluginHost(plugin, rank_.context, &device_, [this](std::string_view name, double value) {
      if (name == "bad") throw std::runtime_error("disk full");
      metrics_ << name << '=' << value << ';';
    });
  }

  LoggingRank rank_;
  Device* device_ = nullptr;
  std::ostringstream lines_, metrics_;
};

TEST_F(PluginHostTest, KeysArePrivateToThePlugin) {
  PluginHost a = MakeHost("a"), b = MakeHost("b");
  const uint8_t value[] = {0, 1, 255};
  ASSERT_TRUE(a.StoreSet("k", value).ok());
  std::string read;
  ASSERT_TRUE(StoreGetString(a, "k", 1000, &read).ok());
  EXPECT_EQ(read, std::string("\0\1\xff", 3));
  uint32_t exists = 1;
  ASSERT_TRUE(b.StoreHas("k", &exists).ok());
  EXPECT_FALSE(exists);
  EXPECT_TRUE(*rank_.store.Has("plugin/a:k"));
  Status status = StoreGetString(b, "k", 1, &read);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), testing::HasSubstr("plugin/b:k"));
}

TEST_F(PluginHostTest, AnAbortIsAPeerError) {
  PluginHost host = MakeHost("a");
  rank_.abort.Raise(Status::Error(StatusCode::kTimeout, "no progress"));
  uint32_t exists = 0;
  std::string read;
  for (const Status& status : {host.StoreSet("k", {}), host.StoreHas("k", &exists),
                               StoreGetString(host, "k", 1000, &read)}) {
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
  rank_.context.log = [this](LogLevel level, std::string_view text) {
    lines_ << static_cast<int>(level) << ' ' << text << '\n';
  };
  PluginHost host = MakeHost("tcp");
  host.Log(LogLevel::kWarning, "slow {} link");  // braces of a plugin are text
  host.Metric("bytes", 3);
  host.Metric("bad", 1);
  EXPECT_EQ(metrics_.str(), "bytes=3;");
  EXPECT_EQ(lines_.str(), "2 tcp: slow {} link\n2 tcp: disk full\n");
}

}  // namespace
}  // namespace engine::plugin
