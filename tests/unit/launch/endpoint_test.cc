#include "app/launch/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/expect_status.h"

namespace engine::launch {
namespace {

TEST(ParseEndpoint, TakesHostAndPort) {
  const auto endpoint = ValueOf(ParseEndpoint("node1:29500"));
  EXPECT_EQ(endpoint.host, "node1");
  EXPECT_EQ(endpoint.port, "29500");
  EXPECT_EQ(ParseEndpoint("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseEndpoint("unix:x:1")->unix_name, "x:1");
}

TEST(ParseEndpoint, RefusesTheRest) {
  for (const char* text : {"", "node1", "node1:", ":1", "node1:0", "node1:65536", "node1:1x",
                           "::1:80", "unix:", "node1:-1"}) {
    EXPECT_THAT(ParseEndpoint(text),
                FailsWith(StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")))
        << text;
  }
  EXPECT_FALSE(ParseEndpoint("unix:" + std::string(101, 'x')).ok());
}

Endpoint UnixEndpoint(const char* name) {
  return *ParseEndpoint("unix:engine-test-" + std::to_string(getpid()) + "-" + name);
}

TEST(Endpoint, SaysThatAnAddressIsTaken) {
  Endpoint endpoint = UnixEndpoint("taken");
  const auto first = ValueOf(ListenAt(endpoint));
  EXPECT_THAT(ListenAt(endpoint),
              FailsWith(StatusCode::kRendezvous, HasSubstr("another run or program uses it")));
}

TEST(Endpoint, ListensOnTheNamedInterfaceOnly) {
  // Port 0 is no valid rendezvous, but the kernel then picks a free one for this test.
  Endpoint endpoint{"127.0.0.1:0", "127.0.0.1", "0", ""};
  const auto listener = ValueOf(ListenAt(endpoint));
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
}

TEST(Endpoint, NumbersAndLocalhostAreNoNamesOfAHost) {
  for (const char* text : {"127.0.0.1:1", "[::1]:1", "localhost:1", "unix:x"}) {
    EXPECT_FALSE(ValueOf(IsOwnName(*ParseEndpoint(text)))) << text;
  }
}

TEST(Endpoint, AFreeAddressCanBeListenedAt) {
  const std::string address = ValueOf(FreeAddress("127.0.0.1"));
  EXPECT_THAT(ListenAt(*ParseEndpoint(address)), IsOk());
}

TEST(Endpoint, RankZeroMustRunOnThatHost) {
  // 192.0.2.0/24 is reserved for documentation, so no test machine should own this address.
  EXPECT_THAT(ListenAt(*ParseEndpoint("192.0.2.250:29500")).status().message(),
              HasSubstr("must run on that host"));
}

TEST(Endpoint, StopsTryingWhenCancelled) {
  base::AbortSignal cancel;
  cancel.Raise(Status::Error(StatusCode::kInterrupted, "stopped"));
  EXPECT_THAT(ConnectTo(UnixEndpoint("cancel"), base::DeadlineIn(60000), cancel),
              FailsWith(StatusCode::kInterrupted));
}

// That a name which comes is taken is seen in tests/package/run.sh.
TEST(AwaitName, EndsAtTheDeadline) {
  EXPECT_TRUE(AwaitName(*ParseEndpoint("127.0.0.1:1"), base::DeadlineIn(0)).ok());
  EXPECT_THAT(AwaitName(*ParseEndpoint("no..name:1"), base::DeadlineIn(1)),
              FailsWith(StatusCode::kRendezvous));
}

}  // namespace
}  // namespace engine::launch
