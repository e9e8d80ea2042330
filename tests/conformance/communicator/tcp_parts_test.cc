// The parts of the tcp plugin that need no network.
#include <gtest/gtest.h>

#include <string>

#include "plugins/tcp/all_reduce_choice.h"
#include "plugins/tcp_kit/handshake.h"

namespace engine::tcp {
namespace {

TEST(TcpAllReduceChoice, ExchangesBetweenTwoRanksAndWhenSmall) {
  using enum AllReduceAlgorithm;
  EXPECT_EQ(ChooseAllReduce(2, 0), kExchange);
  EXPECT_EQ(ChooseAllReduce(2, size_t{64} << 20), kExchange);
  EXPECT_EQ(ChooseAllReduce(3, 16 << 10), kExchange);
  EXPECT_EQ(ChooseAllReduce(3, (16 << 10) + 1), kReduceScatterAllGather);
  EXPECT_EQ(ChooseAllReduce(64, size_t{64} << 20), kReduceScatterAllGather);
}

std::string Token() {
  const auto token = Key::NewToken();
  EXPECT_TRUE(token.ok());
  return *token;
}

Key KeyOf(const std::string& token, const std::string& file) {
  const auto key = Key::Of(token, file);
  EXPECT_TRUE(key.ok()) << key.status().message();
  return *key;
}

TEST(TcpHandshake, ProvesTokenAndKeyFile) {
  const std::string token = Token();
  const Key key = KeyOf(token, "the file"), same = KeyOf(token, "the file");
  const Hello hello = key.MakeHello(3, 1);
  EXPECT_EQ(hello.rank, 3);
  EXPECT_EQ(hello.lane, 1);
  EXPECT_TRUE(same.Proves(hello));
  EXPECT_TRUE(Equal(key.Answer(hello, true), same.Answer(hello, true)));
  EXPECT_FALSE(Equal(key.Answer(hello, true), same.Answer(hello, false)));
  EXPECT_EQ(key.Fingerprint(), same.Fingerprint());
  for (const Key& other : {KeyOf(token, ""), KeyOf(token, "a file"), KeyOf(Token(), "the file")}) {
    EXPECT_FALSE(other.Proves(hello));
    EXPECT_FALSE(Equal(key.Answer(hello, true), other.Answer(hello, true)));
    EXPECT_NE(key.Fingerprint(), other.Fingerprint());
  }
}

TEST(TcpHandshake, CoversEveryFieldOfAHello) {
  const Key key = KeyOf(Token(), "");
  const Hello hello = key.MakeHello(3, 1);
  for (size_t byte = 0; byte < sizeof(Hello); ++byte) {
    Hello changed = hello;
    reinterpret_cast<unsigned char*>(&changed)[byte] ^= 1;
    EXPECT_FALSE(key.Proves(changed)) << "byte " << byte;
  }
  EXPECT_NE(key.MakeHello(3, 1).nonce, hello.nonce);
}

TEST(TcpHandshake, RefusesATokenThatIsNone) {
  for (const char* text : {"", "abc", "zz"}) {
    EXPECT_EQ(Key::Of(text, "").status().code(), StatusCode::kRendezvous);
  }
}

}  // namespace
}  // namespace engine::tcp
