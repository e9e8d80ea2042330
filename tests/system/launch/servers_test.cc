// Servers that join a run of processes from elsewhere.

#include <sys/stat.h>

#include <filesystem>

#include "tests/support/engine_process.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_folder.h"
#include "tests/system/launch/probe_test.h"

namespace engine {
namespace {

using engine::test::Await;

class ServeAt : public ProbeTest {
 protected:
  // `more`: flags of the launcher.
  ProbeProcess& StartRun(const std::string& scenario, const std::string& servers,
                         const std::string& more = "") {
    return Start(scenario + " -n 2 --servers " + servers + " --serve-at " + address_ + more);
  }
  ProbeProcess& Serve(const std::string& scenario, const std::string& index,
                      const std::string& more = "") {
    return Start(scenario + " --serve " + address_ + " --index " + index + more);
  }
  void ExpectRefused(ProbeProcess& server, int exit_code, const std::string& sentence) {
    EXPECT_EQ(server.Wait(), exit_code);
    EXPECT_THAT(ErrorOf(server), HasSubstr(sentence));
  }
  const int port_ = FreePort();
  const std::string address_ = "127.0.0.1:" + std::to_string(port_);
  engine::test::TempFolder folder_;
  const std::string key_flag_ = " --key-file " + (folder_ / "key");
};

TEST_F(ServeAt, ServersJoinOverTheNetwork) {
  Serve("ring", "1");  // before there is a run
  StartRun("ring", "2");
  Serve("ring", "0");
  ExpectEnds({0, 0, 0});
  for (const size_t server : {0, 2}) {
    EXPECT_THAT(Output(server), HasSubstr("run of 2 ranks, 2 servers, one host 1\n"));
    EXPECT_THAT(Output(server), HasSubstr("served 0\n"));
  }
}

TEST_F(ServeAt, AMissingServerIsNamed) {
  ProbeProcess& run = StartRun("ring", "2", " --rendezvous-ms 700");
  ProbeProcess& server = Serve("ring", "0");
  ExpectEnds({201, 201});
  EXPECT_THAT(ErrorOf(run), HasSubstr("server 1 did not join at " + address_));
  EXPECT_THAT(ErrorOf(server), HasSubstr("server 1 did not join at"));
}

TEST_F(ServeAt, TheKeyDecidesWhoServes) {
  const std::string anywhere = "0.0.0.0:" + std::to_string(port_);
  ProbeProcess& run = Start("ring -n 2 --servers 1 --serve-at " + anywhere + key_flag_);
  Await("the key", [&] { return std::filesystem::exists(folder_ / "key"); });
  struct stat info {};
  ASSERT_EQ(stat((folder_ / "key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777u, 0600u);
  ExpectRefused(Serve("ring", "0"), 201, "asks for a key");
  const std::string wrong = folder_.Write("wrong", std::string(64, '7'));
  std::filesystem::permissions(wrong, std::filesystem::perms(0600));
  ExpectRefused(Serve("ring", "0", " --key-file " + wrong), 201,
                "does not know the key of this run");
  std::filesystem::permissions(wrong, std::filesystem::perms(0644));
  ExpectRefused(Serve("ring", "0", " --key-file " + wrong), 78, "others than its owner");

  ProbeProcess& server = Serve("ring", "0", key_flag_);
  EXPECT_EQ(run.Wait(), 0) << run.output();
  EXPECT_EQ(server.Wait(), 0) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("one host 0\n"));
  EXPECT_THAT(run.output(), HasSubstr("notice: refused a connection from 127.0.0.1:"));
}

}  // namespace
}  // namespace engine
