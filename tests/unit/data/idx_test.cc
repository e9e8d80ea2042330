#include "plugins/mnist/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/idx_bytes.h"

namespace engine {
namespace {

using test::Gzip;
using test::IdxHeader;
using test::IdxImages;
using test::IdxLabels;
using test::TempFolder;

// Of an array of exactly `dimensions` dimensions of bytes.
Result<data_kit::NumberArray> ReadIdx(const std::string& path, int32_t dimensions) {
  return mnist::ReadIdx(path, dimensions, dimensions);
}

std::vector<int> ValuesOf(const data_kit::NumberArray& array) {
  return {array.elements.begin(), array.elements.end()};
}

void ExpectBad(const std::string& path, int32_t dimensions, const std::string& reason) {
  EXPECT_THAT(ReadIdx(path, dimensions),
              FailsWith(StatusCode::kBadData, AllOf(HasSubstr(path), HasSubstr(reason))));
}

TEST(Idx, ReadsPlainAndGzipByContent) {
  TempFolder folder;
  for (const std::string& content : {IdxImages(3), Gzip(IdxImages(3))}) {
    const auto array = ValueOf(ReadIdx(folder.Write("images", content), 3));
    EXPECT_THAT(array.shape, ::testing::ElementsAre(3, 2, 3));
    EXPECT_THAT(ValuesOf(array), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15,
                                                        20, 21, 22, 23, 24, 25));
  }
}

TEST(Idx, ReadsMoreThanOneChunk) {
  TempFolder folder;
  std::vector<int> values;
  for (int i = 0; i < 2 * 750 * 800; ++i) values.push_back(i % 251);
  const std::string content = IdxHeader({2, 750, 800}) + std::string(values.begin(), values.end());
  for (const std::string& file : {content, Gzip(content)}) {
    EXPECT_TRUE(ValuesOf(ValueOf(ReadIdx(folder.Write("images", file), 3))) == values);
  }
}

TEST(Idx, EveryTruncationIsRefused) {
  TempFolder folder;
  for (const std::string& content : {IdxImages(4), Gzip(IdxImages(4))}) {
    for (size_t size = 0; size < content.size(); ++size) {
      ASSERT_THAT(ReadIdx(folder.Write("images", content.substr(0, size)), 3),
                  FailsWith(StatusCode::kBadData, HasSubstr("offset")))
          << size << " of " << content.size() << " bytes";
    }
  }
}

TEST(Idx, EveryFlippedBitOfAGzipFileIsRefusedOrHarmless) {
  TempFolder folder;
  const std::string good = Gzip(IdxImages(4));
  const std::vector<int> values = ValuesOf(ValueOf(ReadIdx(folder.Write("good", good), 3)));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string damaged = good;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto array = ReadIdx(folder.Write("images", damaged), 3);
    if (array.ok()) {  // the time stamp of the file, unused bits at the end of a block
      EXPECT_EQ(ValuesOf(*array), values) << "bit " << bit;
    } else {
      EXPECT_EQ(array.status().code(), StatusCode::kBadData) << "bit " << bit;
    }
  }
}

TEST(Idx, WrongHeadersAreNamedWithTheirOffset) {
  TempFolder folder;
  std::string bad_magic = IdxImages(1);
  bad_magic[0] = 'P';
  ExpectBad(folder.Write("a", bad_magic), 3, "bad magic at offset 0");
  std::string strange = IdxImages(1);
  strange[2] = 0x0a;
  ExpectBad(folder.Write("b", strange), 3, "the type of its values is unknown at offset 2");
  ExpectBad(folder.Write("c", IdxLabels(1)), 3, "1 instead of 3");
  ExpectBad(folder.Write("d", IdxImages(1)), 1, "number of dimensions is wrong at offset 3");
  ExpectBad(folder.Write("e", ""), 3, "ends too early at offset 0");
  ExpectBad(folder.Write("f", IdxLabels(3) + "x"), 1,
            "more data than the extents say at offset 11");
  ExpectBad(folder.Write("g", Gzip(IdxLabels(3) + "x")), 1, "more data than the extents say");
  ExpectBad(folder.Write("h", Gzip(IdxLabels(3)) + Gzip("x")), 1, "more data than the extents say");
  const std::string packed = Gzip(IdxLabels(50));
  ExpectBad(folder.Write("i", packed.substr(0, 30)), 1, "the compressed file is cut short");
}

// Extents that say more than the file can hold, up to 2^96 values.
TEST(Idx, ExtentsThatExceedTheFileAreRefusedBeforeAnythingIsAllocated) {
  TempFolder folder;
  const uint32_t huge = 0xffffffff;
  for (const std::string& header : {IdxHeader({huge, huge, huge}), IdxHeader({huge, 28, 28}),
                                    IdxHeader({100, 28, 28}), IdxHeader({huge, huge, 0})}) {
    ExpectBad(folder.Write("plain", header + "data"), 3, "more values than the file can hold");
  }
  ExpectBad(folder.Write("packed", Gzip(IdxHeader({huge, huge, huge}) + "data")), 3,
            "more values than the file can hold at offset 4");
  // Compressed, a million zeros are possible in 1 kB, but here they are not there.
  std::string zeros = IdxHeader({85000, 2, 3}) + std::string(500000, '\0');
  ExpectBad(folder.Write("zeros", Gzip(zeros)), 3, "more values than the file can hold");
}

TEST(Idx, ReadsEveryTypeOfElement) {
  TempFolder folder;
  struct Case {
    char type;
    std::string bytes;  // big-endian
    double value;
  };
  for (const Case& c : {Case{0x08, "\xfe", 254}, Case{0x09, "\xfe", -2},
                        Case{0x0b, "\xfe\x01", -511}, Case{0x0c, std::string("\0\1\0\2", 4), 65538},
                        Case{0x0d, std::string("\x3f\xc0\0\0", 4), 1.5},
                        Case{0x0e, std::string("\xbf\xf8\0\0\0\0\0\0", 8), -1.5}}) {
    std::string content = IdxHeader({1, 2}) + c.bytes + c.bytes;
    content[2] = c.type;
    const auto array = ValueOf(mnist::ReadIdx(folder.Write("x", content), 2, 4));
    double values[2];
    array.Read(0, 0, 2, values);
    EXPECT_EQ(values[0], c.value);
    EXPECT_EQ(values[1], c.value);
  }
}

TEST(Idx, WhatIsNoFile) {
  TempFolder folder;
  EXPECT_EQ(ReadIdx(folder / "nothing", 3).status().code(), StatusCode::kMissingInput);
  EXPECT_THAT(ReadIdx(folder / "nothing", 3).status().message(), HasSubstr("No such file"));
  ExpectBad(folder.path().native(), 3, "not a regular file");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  ExpectBad(folder / "fifo", 3, "not a regular file");
}

}  // namespace
}  // namespace engine
