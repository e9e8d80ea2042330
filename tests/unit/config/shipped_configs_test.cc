// The files in configs/ against the plugins of this repository.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "app/config/config.h"
#include "app/config/default_config.h"
#include "tests/support/expect_status.h"

namespace engine::config {
namespace {

std::string ReadConfig(const std::string& name) {
  std::ifstream in(ENGINE_TEST_SOURCE_DIR "/configs/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ShippedConfigs, TheDefaultIsTheFile) {
  EXPECT_EQ(DefaultConfigText(), ReadConfig("gpt_text.pbtxt"));
  EXPECT_NE(DefaultConfigText(), "");
}

#ifdef ENGINE_TEST_ALL_PLUGINS
class ShippedConfigsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ShippedConfigsTest, Loads) {
  const auto config = ValueOf(Config::Load({.text = ReadConfig(GetParam()),
                                            .origin = GetParam(),
                                            .default_plugins = {{.name = "tcp"}},
                                            .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}}));
  EXPECT_FALSE(config.plugins().ops.empty());
}

TEST(ShippedConfigs, OneKeySaysHowLongRanksWaitForEachOther) {
  const auto config = Config::Load({.text = ReadConfig("synthetic.pbtxt"),
                                    .origin = "synthetic.pbtxt",
                                    .overrides = {"tcp.rendezvous_timeout_ms=7000"},
                                    .plugins = {"tcp"},
                                    .plugin_folders = {ENGINE_TEST_PLUGIN_DIR}});
  EXPECT_STREQ(config.status().message(),
               "--set tcp.rendezvous_timeout_ms=7000: unknown key 'rendezvous_timeout_ms' in "
               "'tcp'; did you mean 'communication.rendezvous_timeout_ms'?");
}

INSTANTIATE_TEST_SUITE_P(All, ShippedConfigsTest,
                         ::testing::Values("cnn_mnist.pbtxt", "gpt2_124m.pbtxt", "gpt_text.pbtxt",
                                           "mlp_mnist.pbtxt", "resnet18_cifar.pbtxt",
                                           "synthetic.pbtxt"));
#endif

}  // namespace
}  // namespace engine::config
