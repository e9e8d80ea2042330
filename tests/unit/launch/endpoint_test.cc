#include "app/launch/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace engine::launch {
namespace {

using testing::HasSubstr;

TEST(ParseEndpoint, TakesHostAndPort) {
  Result<Endpoint> endpoint = ParseEndpoint("node1:29500");
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->host, "node1");
  EXPECT_EQ(endpoint->port, "29500");
  EXPECT_EQ(ParseEndpoint("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseEndpoint("unix:x:1")->unix_name, "x:1");
}

TEST(ParseEndpoint, RefusesTheRest) {
  for (const char* text : {"", "node1", "node1:", ":1", "node1:0", "node1:65536", "node1:1x",
                           "::1:80", "unix:", "node1:-1"}) {
    Result<Endpoint> endpoint = ParseEndpoint(text);
    ASSERT_FALSE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(endpoint.status().message(), HasSubstr("HOST:PORT")) << text;
  }
  EXPECT_FALSE(ParseEndpoint("unix:" + std::string(101, 'x')).ok());
}

Endpoint UnixEndpoint(const char* name) {
  return *ParseEndpoint("unix:engine-test-" + std::to_string(getpid()) + "-" + name);
}

TEST(Endpoint, ConnectsOverAnAbstractSocket) {
  Endpoint endpoint = UnixEndpoint("connect");
  Result<base::UniqueFd> listener = ListenAt(endpoint);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  base::AbortSignal cancel;
  Result<base::UniqueFd> client = ConnectTo(endpoint, base::DeadlineIn(10000), cancel);
  ASSERT_TRUE(client.ok()) << client.status().message();
  base::UniqueFd server = AcceptFrom(*listener);
  ASSERT_TRUE(server.valid());
  char byte = 'x';
  ASSERT_EQ(send(client->get(), &byte, 1, 0), 1);
  EXPECT_EQ(recv(server.get(), &byte, 1, 0), 1);
}

TEST(Endpoint, SaysThatAnAddressIsTaken) {
  Endpoint endpoint = UnixEndpoint("taken");
  Result<base::UniqueFd> first = ListenAt(endpoint);
  ASSERT_TRUE(first.ok());
  Result<base::UniqueFd> second = ListenAt(endpoint);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kRendezvous);
  EXPECT_THAT(second.status().message(), HasSubstr("another run or program uses it"));
}

TEST(Endpoint, ListensOnTheNamedInterfaceOnly) {
  // Port 0 is no valid rendezvous, but the kernel then picks a free one for this test.
  Endpoint endpoint{"127.0.0.1:0", "127.0.0.1", "0", ""};
  Result<base::UniqueFd> listener = ListenAt(endpoint);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(listener->get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
}

TEST(Endpoint, RankZeroMustRunOnThatHost) {
  // 192.0.2.0/24 is reserved for documentation, so no test machine should own this address.
  Result<base::UniqueFd> listener = ListenAt(*ParseEndpoint("192.0.2.250:29500"));
  ASSERT_FALSE(listener.ok());
  EXPECT_THAT(listener.status().message(), HasSubstr("must run on that host"));
}

TEST(Endpoint, GivesUpAtTheDeadlineAndNamesThePlace) {
  base::AbortSignal cancel;
  Endpoint endpoint = UnixEndpoint("nobody");
  Result<base::UniqueFd> client = ConnectTo(endpoint, base::DeadlineIn(60), cancel);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::kRendezvous);
  EXPECT_THAT(client.status().message(), HasSubstr(endpoint.text));
}

TEST(Endpoint, StopsTryingWhenCancelled) {
  base::AbortSignal cancel;
  cancel.Raise(Status::Error(StatusCode::kInterrupted, "stopped"));
  Result<base::UniqueFd> client =
      ConnectTo(UnixEndpoint("cancel"), base::DeadlineIn(60000), cancel);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::kInterrupted);
}

}  // namespace
}  // namespace engine::launch
