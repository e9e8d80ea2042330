// Files of events, read by the description of the formats and not by what wrote them.
#include "app/run/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::run {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// CRC-32C by a table, RFC 3720, and TensorFlow's mask.
uint32_t MaskedCrc(const std::string& bytes) {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t entry = i;
    for (int bit = 0; bit < 8; ++bit) entry = entry & 1 ? entry >> 1 ^ 0x82f63b78 : entry >> 1;
    table[i] = entry;
  }
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

template <typename Number>
Number Take(const std::string& bytes, size_t* at) {
  Number number{};
  EXPECT_LE(*at + sizeof number, bytes.size());
  std::memcpy(&number, bytes.data() + *at, sizeof number);
  *at += sizeof number;
  return number;
}

std::vector<std::string> Records(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const std::string length = file.substr(at, 8);
    const auto size = Take<uint64_t>(file, &at);
    EXPECT_EQ(Take<uint32_t>(file, &at), MaskedCrc(length));
    records.push_back(file.substr(at, size));
    at += size;
    EXPECT_EQ(Take<uint32_t>(file, &at), MaskedCrc(records.back()));
  }
  return records;
}

// The fields of a Protobuf message by number; lengths and steps here fit one byte.
std::multimap<int, std::string> Fields(const std::string& message) {
  std::multimap<int, std::string> fields;
  for (size_t at = 0; at < message.size();) {
    const auto key = Take<uint8_t>(message, &at);
    const int wire = key & 7;
    const size_t size = wire == 0 ? 1 : wire == 1 ? 8 : wire == 5 ? 4 : Take<uint8_t>(message, &at);
    fields.emplace(key >> 3, message.substr(at, size));
    at += size;
  }
  return fields;
}

std::vector<std::pair<std::string, float>> Scalars(const std::string& event) {
  std::vector<std::pair<std::string, float>> scalars;
  const auto summary = Fields(Fields(event).find(5)->second);
  for (const auto& [number, value] : summary) {
    const auto parts = Fields(value);
    size_t at = 0;
    scalars.emplace_back(parts.find(1)->second, Take<float>(parts.find(2)->second, &at));
  }
  return scalars;
}

TEST(EventFile, HoldsTheScalarsOfEachStep) {
  const test::TempFolder folder;
  EventFile events(folder.path());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "before the first step";
  ASSERT_THAT(events.Write(train::StepReport{.step = 7,
                                             .loss = 1.5,
                                             .learning_rate = 0.25,
                                             .samples = 8,
                                             .seconds = 2,
                                             .communication_seconds = 1}),
              IsOk());
  ASSERT_THAT(events.Write(train::EvaluationReport{.step = 8, .loss = 0.5}), IsOk());
  ASSERT_THAT(events.WritePluginMetric(8, 0, "gradient_norm", 3), IsOk());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(names[0].starts_with("events.out.tfevents."));
  // All of it is there while the file is still open, as after a crash.
  const auto records = Records(test::ReadWhole(folder / names[0]));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(Fields(records[0]).find(3)->second, "brain.Event:2");
  EXPECT_EQ(Fields(records[1]).find(2)->second, "\x07");
  EXPECT_THAT(
      Scalars(records[1]),
      UnorderedElementsAre(Pair("loss", 1.5f), Pair("accuracy", 0.0f), Pair("learning_rate", 0.25f),
                           Pair("samples_per_second", 4.0f), Pair("communication_share", 0.5f)));
  EXPECT_THAT(Scalars(records[2]), ::testing::Contains(Pair("held_out/loss", 0.5f)));
  EXPECT_THAT(Scalars(records[3]), ElementsAre(Pair("plugins/gradient_norm", 3.0f)));
}

TEST(EventFile, AFolderThatIsNotThereIsAnError) {
  EventFile events("/nowhere/at/all");
  EXPECT_THAT(events.Write(train::StepReport{}), FailsWith(StatusCode::kStorage));
}

}  // namespace
}  // namespace engine::run
