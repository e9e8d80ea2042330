// The key that a server shares with its run.

#include "app/launch/server_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::launch {
namespace {

using Side = ServerKey::Side;

class ServerKeyTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text, mode_t mode) {
    folder_.Write("key", text);
    EXPECT_EQ(chmod(path().c_str(), mode), 0);
    return path();
  }
  std::string path() { return folder_ / "key"; }

  engine::test::TempFolder folder_;
};

TEST_F(ServerKeyTest, IsMadeOnceForItsOwnerOnly) {
  const auto made = ValueOf(ServerKey::LoadOrCreate(path()));
  struct stat info {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777u, 0600u);
  EXPECT_EQ(info.st_size, 65);
  const auto again = ServerKey::LoadOrCreate(path());
  const auto loaded = ServerKey::Load(path());
  ASSERT_TRUE(again.ok() && loaded.ok());
  const std::string nonce = ServerKey::MakeNonce();
  EXPECT_EQ(made.Prove(Side::kMember, nonce, nonce, -2),
            again->Prove(Side::kMember, nonce, nonce, -2));
  EXPECT_TRUE(
      loaded->Check(made.Prove(Side::kStore, nonce, nonce, -3), Side::kStore, nonce, nonce, -3));
}

TEST_F(ServerKeyTest, AProofIsOfOneSideOneMemberAndOneChallenge) {
  const auto key = ServerKey::LoadOrCreate(path());
  const auto other = ServerKey::LoadOrCreate(folder_ / "other");
  ASSERT_TRUE(key.ok() && other.ok());
  const std::string a = ServerKey::MakeNonce(), b = ServerKey::MakeNonce();
  EXPECT_NE(a, b);
  const std::string proof = key->Prove(Side::kMember, a, b, -2);
  EXPECT_EQ(proof.size(), ServerKey::kProofBytes);
  EXPECT_TRUE(key->Check(proof, Side::kMember, a, b, -2));
  EXPECT_FALSE(key->Check(proof, Side::kStore, a, b, -2));
  EXPECT_FALSE(key->Check(proof, Side::kMember, b, a, -2));
  EXPECT_FALSE(key->Check(proof, Side::kMember, a, b, -3));
  EXPECT_FALSE(key->Check(proof.substr(1), Side::kMember, a, b, -2));
  EXPECT_FALSE(key->Check("", Side::kMember, a, b, -2));
  EXPECT_FALSE(key->Check(key->Prove(Side::kMember, a, "", -2), Side::kMember, a, "", -2));
  EXPECT_FALSE(other->Check(proof, Side::kMember, a, b, -2));
}

TEST_F(ServerKeyTest, RefusesAFileThatOthersMayRead) {
  for (mode_t mode : {0640u, 0604u, 0620u}) {
    EXPECT_THAT(ServerKey::Load(Write(std::string(64, 'a') + "\n", mode)),
                FailsWith(StatusCode::kConfig, HasSubstr("others than its owner")));
  }
}

TEST_F(ServerKeyTest, RefusesWhatIsNoKey) {
  for (const std::string& text :
       {std::string(), std::string("secret\n"), std::string(63, 'a'), std::string(64, 'g'),
        std::string(66, 'a'), std::string(64, 'a') + "\n\n"}) {
    EXPECT_THAT(ServerKey::Load(Write(text, 0600)),
                FailsWith(StatusCode::kBadData, ::testing::Not(HasSubstr("secret"))))
        << text;
  }
  EXPECT_TRUE(ServerKey::Load(Write(std::string(64, 'a'), 0600)).ok());
}

TEST_F(ServerKeyTest, AMissingFileIsNamed) {
  EXPECT_THAT(ServerKey::Load(path()), FailsWith(StatusCode::kMissingInput, HasSubstr(path())));
  EXPECT_EQ(ServerKey::LoadOrCreate(folder_ / "no/such/key").status().code(), StatusCode::kStorage);
}

}  // namespace
}  // namespace engine::launch
