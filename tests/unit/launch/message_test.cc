#include "app/launch/message.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/expect_status.h"

namespace engine::launch {
namespace {

Message Sample() {
  return {MessageKind::kSet, 0x01020304, -1, -7, "a key", std::string("\0value", 6)};
}

// The frame of the grammar, byte by byte, so that an accidental change of the format shows.
TEST(Message, IsTheGrammar) {
  Message message{MessageKind::kHello, 1, 2, 3, "k", "vw"};
  const std::string expected(
      "\x14\0\0\0"
      "\x01"
      "\x01\0\0\0"
      "\x02\0\0\0"
      "\x03\0\0\0"
      "\x01\0\0\0"
      "kvw",
      24);
  EXPECT_EQ(Encode(message), expected);
}

TEST(Message, RoundTripsByteByByte) {
  std::string stream = Encode(Sample()) + Encode({}) + Encode(Sample());
  MessageReader reader;
  std::vector<Message> messages;
  for (char byte : stream) {
    reader.Append(&byte, 1);
    Message message;
    const auto next = ValueOf(reader.Next(&message));
    if (next) messages.push_back(message);
  }
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(Encode(messages[0]), Encode(Sample()));  // a frame holds all fields: IsTheGrammar
  EXPECT_EQ(Encode(messages[1]), Encode({}));
  EXPECT_EQ(Encode(messages[2]), Encode(Sample()));
}

std::string Corrupt(size_t offset, std::initializer_list<uint8_t> bytes) {
  std::string frame = Encode(Sample());
  for (uint8_t byte : bytes) frame[offset++] = static_cast<char>(byte);
  return frame;
}

TEST(Message, RefusesWhatIsNoFrame) {
  const std::string bad[] = {
      Corrupt(0, {0, 0, 0, 0}),               // shorter than the fixed part
      Corrupt(0, {0xff, 0xff, 0xff, 0xff}),   // longer than any frame
      Corrupt(4, {0}),                        // kinds start at 1
      Corrupt(4, {200}),                      // and end before this
      Corrupt(17, {0xff, 0xff, 0xff, 0xff}),  // a key longer than any
      Corrupt(17, {12, 0, 0, 0}),             // a key longer than its frame
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
  };
  for (const std::string& bytes : bad) {
    MessageReader reader;
    reader.Append(bytes.data(), bytes.size());
    Message message;
    EXPECT_THAT(reader.Next(&message), FailsWith(StatusCode::kBadData))
        << testing::PrintToString(bytes);
  }
}

TEST(Message, RefusesALengthBombFromItsFirstBytes) {
  MessageReader reader;
  reader.set_max_value_bytes(0);
  const std::string size("\x00\x00\x10\x00", 4);  // 1 MiB announced
  reader.Append(size.data(), size.size());
  Message message;
  EXPECT_FALSE(reader.Next(&message).ok());
}

TEST(Message, CarriesAStatus) {
  Status status = Status::Error(StatusCode::kConfig, "a sentence").WithRank(3);
  Status back = DecodeStatus(EncodeStatus(MessageKind::kFail, status));
  EXPECT_EQ(back.code(), StatusCode::kConfig);
  EXPECT_EQ(back.rank(), 3);
  EXPECT_STREQ(back.message(), "a sentence");
  for (const int32_t unknown : {-1, 0, 1000}) {
    EXPECT_EQ(DecodeStatus({MessageKind::kFail, 0, -1, unknown, "", "x"}).code(),
              StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace engine::launch
