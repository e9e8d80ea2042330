// Files that are damaged, hostile or of another kind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "app/checkpoint/safetensors.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::checkpoint {
namespace {

using test::ReadWhole;
using test::TempFolder;

std::string FileOf(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

struct Case {
  const char* reason;  // part of the message
  std::string header;
  size_t data_bytes = 0;
};

// One tensor "t", its description without braces.
std::string Tensor(const std::string& description) {
  return R"({"t":{)" + description + "}}";
}
std::string Typed(const std::string& dtype, const std::string& shape = "[1]",
                  const std::string& offsets = "[0,4]") {
  return Tensor(R"("dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets);
}
std::string Bytes(const std::string& shape, const std::string& offsets) {
  return Typed("U8", shape, offsets);
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"does not begin with '{'", ""},
      {"does not begin with '{'", "[]"},
      {"does not begin with '{'", " {}"},
      {"does not begin with '{'", "\xef\xbb\xbf{}"},
      {"not valid JSON", "{"},
      {"not valid JSON", "{}}"},
      {"not valid JSON", "{\"\xff\":{}}"},
      {"not valid JSON", "{,}"},
      {"not valid JSON", std::string("{}\0", 3)},
      {"has number where 't'", R"({"t":1})"},
      {"has a list where 't'", R"({"t":[]})"},
      {"has a list where 't'", R"({"t":)" + std::string(100000, '[')},
      {"has null where 't'", R"({"t":null})"},
      {"an object where 't'", Tensor(R"("dtype":{})")},
      {"a list where 't'", Tensor(R"("shape":[[1]])")},
      {"has \"1\" where its shape", Bytes(R"("1")", "[0,1]"), 1},
      {"dtype [\"F32\"]", Tensor(R"("dtype":["F32"],"shape":[],"data_offsets":[0,4])"), 4},
      {"unknown key 'strides'", Tensor(R"("dtype":"F32","strides":[1])")},
      {"'dtype' is there twice", Tensor(R"("dtype":"F32","dtype":"F32")")},
      {"lacks dtype, shape or data_offsets", Tensor("")},
      {"lacks dtype, shape or data_offsets", Tensor(R"("dtype":"F32","shape":[])")},
      {"not two positions", Bytes("[]", "[0]")},
      {"not two positions", Bytes("[1]", "[0,1,1]"), 1},
      {"dtype \"F8_E4M3\"", Typed("F8_E4M3", "[1]", "[0,1]"), 1},
      {"dtype \"f32\"", Typed("f32"), 4},
      {"has -1 where its shape", Bytes("[-1]", "[0,1]"), 1},
      {"has 1.5 where its shape", Bytes("[1.5]", "[0,1]"), 1},
      {"integer of 63 bits", Bytes("[18446744073709551616]", "[0,0]")},
      {"integer of 63 bits", Bytes("[9223372036854775808]", "[0,0]")},
      {"extents is too large", Typed("F32", "[4294967296,4294967296]", "[0,0]")},
      {"extents is too large", Typed("F32", "[4611686018427387904]", "[0,0]")},
      {"extents is too large", Bytes("[0,4294967296,4294967296]", "[0,0]")},
      {"more than 6 dimensions", Tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1])")},
      {"shape needs 8", Typed("F32", "[2]"), 4},
      {"shape needs 0", Typed("F32", "[0]"), 4},
      {"outside of the 4 bytes", Typed("F32", "[2]", "[0,8]"), 4},
      {"outside of the 4 bytes", Bytes("[1]", "[2,1]"), 4},
      {"outside of the 4 bytes", Bytes("[4]", "[18446744073709551612,0]"), 4},
      {"cover 4 of 5", Typed("F32"), 5},
      {"cover 0 of 5", "{}", 5},
      {"a hole in the data before tensor 't'", Bytes("[1]", "[1,2]"), 2},
      {"'b' overlaps",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3},
      {"'b' overlaps",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2},
      {"'a' is there twice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2},
      {"metadata 'k' is number", R"({"__metadata__":{"k":1}})"},
      {"an object where '__metadata__'", R"({"__metadata__":{"k":{}}})"},
      {"metadata 'k' is null", R"({"__metadata__":{"k":null}})"},
      {"'k' is there twice", R"({"__metadata__":{"k":"1","k":"2"}})"},
      {"'__metadata__' is there twice", R"({"__metadata__":{},"__metadata__":{}})"},
      {"where '__metadata__'", R"({"__metadata__":"k"})"},
      {"match its digest", R"({"__metadata__":{"digest":"xxh3_128:0"}})"},
      {"match its digest", R"({"__metadata__":{"digest":""}})"},
      {"where '?[31m'", "{\"\\u001b[31m\":1}"},
  };
  return cases;
}

TEST(SafetensorsAbuse, EachHeaderIsRefusedWithItsReason) {
  TempFolder folder;
  for (const Case& c : Cases()) {
    const std::string path = folder.Write("file", FileOf(c.header, std::string(c.data_bytes, 'x')));
    const auto file = SafetensorsFile::Open(path);
    EXPECT_THAT(file, FailsWith(StatusCode::kBadData, HasSubstr(c.reason)))
        << c.header.substr(0, 200);
    EXPECT_THAT(file.status().message(), HasSubstr(path));
  }
}

TEST(SafetensorsAbuse, HeaderLengthsThatLie) {
  TempFolder folder;
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}}) {
    const std::string content = std::string(reinterpret_cast<const char*>(&length), 8) + "{}";
    EXPECT_THAT(SafetensorsFile::Open(folder.Write("file", content)),
                FailsWith(StatusCode::kBadData, HasSubstr("the header would have")));
  }
}

TEST(SafetensorsAbuse, OtherKindsOfFiles) {
  TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  folder.Write("folder/inside", "");
  folder.Write("empty", "");
  folder.Write("text", "This is a text, not a checkpoint.\n");
  folder.Write("pickle", "\x80\x02}q\x01(X\x06weight");
  for (const char* name : {"fifo", "folder", "empty", "text", "pickle"}) {
    EXPECT_EQ(SafetensorsFile::Open(folder / name).status().code(), StatusCode::kBadData) << name;
  }
}

class DamagedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<NamedTensor> tensors = {{"a", {values_, {3}, DType::kFloat32}},
                                              {"b", {values_, {2, 1}, DType::kFloat32}}};
    ASSERT_TRUE(WriteSafetensors(folder_ / "good", tensors, {{"step", "12"}}).ok());
    content_ = ReadWhole(folder_ / "good");
  }

  TempFolder folder_;
  float values_[3] = {1, 2, 3};
  std::string content_;
};

TEST_F(DamagedFile, EveryTruncationIsRefused) {
  for (size_t size = 0; size < content_.size(); ++size) {
    EXPECT_THAT(SafetensorsFile::Open(folder_.Write("cut", content_.substr(0, size))),
                FailsWith(StatusCode::kBadData))
        << size << " of " << content_.size() << " bytes";
  }
  EXPECT_FALSE(SafetensorsFile::Open(folder_.Write("cut", content_ + "x")).ok());
}

// Every byte of length, header and data, except the padding, which is not part of the content, and
// the name of the digest, without which this is a good file of another program.
TEST_F(DamagedFile, EveryFlippedBitIsRefused) {
  const size_t padding = content_.find("}} ") + 2;
  const size_t digest_key = content_.find("digest");
  const size_t data = content_.size() - 5 * sizeof(float);
  for (size_t i = 0; i < content_.size(); ++i) {
    if (i >= padding && i < data) continue;
    if (i >= digest_key && i < digest_key + 6) continue;
    std::string damaged = content_;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    EXPECT_THAT(SafetensorsFile::Open(folder_.Write("damaged", damaged)),
                FailsWith(StatusCode::kBadData))
        << "byte " << i;
  }
}

TEST(Safetensors, FilesOfOtherProgramsAreRead) {
  TempFolder folder;
  // No digest, keys in another order, white space, an odd header length, and "f" on an odd offset.
  const std::string header =
      "{ \"f\": {\"shape\": [1], \"data_offsets\": [3, 7], \"dtype\": \"F32\"},\n"
      " \"u\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [0, 3]},"
      " \"none\": {\"dtype\": \"I32\", \"shape\": [0], \"data_offsets\": [3, 3]} }";
  const float value = 1.5f;
  const std::string data = "abc" + std::string(reinterpret_cast<const char*>(&value), 4);
  for (int spaces = 0; spaces < 8; ++spaces) {
    const std::string path = folder.Write("file", FileOf(header + std::string(spaces, ' '), data));
    const auto file = ValueOf(SafetensorsFile::Open(path));
    EXPECT_EQ(*ValueOf(file->Find("f")).f32(), 1.5f);
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->tensors()[0].name, "u");
  }
}

}  // namespace
}  // namespace engine::checkpoint
