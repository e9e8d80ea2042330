#include "app/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "app/checkpoint/data_digest.h"
#include "kit/digest.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"

namespace engine::checkpoint {
namespace {

using test::ReadWhole;
using test::TempFolder;

TensorView View(std::vector<float>& values, const Shape& shape) {
  return {values.data(), shape, DType::kFloat32};
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  TempFolder folder;
  const std::string path = folder / "model.safetensors";
  std::vector<uint8_t> bytes = {1, 2, 3};
  std::vector<uint16_t> halves = {0x3c00, 0xbc00};
  std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> steps = {-7};
  std::vector<NamedTensor> tensors = {
      {"bytes", {bytes.data(), {3}, DType::kUint8}},
      {"f16", {halves.data(), {2}, DType::kFloat16}},
      {"bf16", {halves.data(), {1, 2}, DType::kBFloat16}},
      {"matrix", View(matrix, {2, 3})},
      {"step", {steps.data(), {}, DType::kInt32}},
      {"empty", {nullptr, {0, 4}, DType::kFloat32}},
      {"größe \"quoted\"", View(matrix, {6})},
  };
  const std::map<std::string, std::string> metadata = {{"step", "12"}, {"note", "line\nline"}};
  const Status written = WriteSafetensors(path, tensors, metadata);
  ASSERT_TRUE(written.ok()) << written.message();

  const auto file = ValueOf(SafetensorsFile::Open(path));
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const auto found = ValueOf(file->Find(tensor.name));
    EXPECT_EQ(found.dtype, tensor.view.dtype) << tensor.name;
    EXPECT_TRUE(found.shape == tensor.view.shape) << tensor.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(found.data) % SizeOf(found.dtype), 0u) << tensor.name;
    if (tensor.view.count() > 0) {
      EXPECT_EQ(std::memcmp(found.data, tensor.view.data, tensor.view.size_bytes()), 0)
          << tensor.name;
    }
  }
  EXPECT_EQ(file->metadata().at("step"), "12");
  EXPECT_EQ(file->metadata().at("note"), "line\nline");
  EXPECT_THAT(file->metadata().at("digest"), ::testing::MatchesRegex("xxh3_128_sum:[0-9a-f]+"));

  EXPECT_THAT(file->Find("nothing").status(),
              FailsWith(StatusCode::kBadData, HasSubstr("'nothing'")));
}

// The layout that other programs rely on, byte by byte.
TEST(Safetensors, TheFileIsLengthPaddedHeaderAndData) {
  TempFolder folder;
  const std::string path = folder / "model.safetensors";
  std::vector<float> values = {1, 2};
  uint8_t byte = 9;
  const std::vector<NamedTensor> tensors = {{"b", {&byte, {1}, DType::kUint8}},
                                            {"a", View(values, {2})}};
  ASSERT_THAT(WriteSafetensors(path, tensors, {}), IsOk());
  const std::string content = ReadWhole(path);

  const std::string described = R"("a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]},)"
                                R"("b":{"data_offsets":[8,9],"dtype":"U8","shape":[1]}})";
  const std::string data = std::string(reinterpret_cast<char*>(values.data()), 8) + "\x09";
  DataDigest digest;
  digest.Add(DataDigest::kHeaderPlace, ("{" + described).data(), described.size() + 1);
  digest.Add(8, &data[8], 1);
  digest.Add(0, data.data(), 8);
  const std::string header =
      R"({"__metadata__":{"digest":")" + digest.Text() + R"("},)" + described;

  uint64_t length = 0;
  std::memcpy(&length, content.data(), 8);
  EXPECT_EQ((8 + length) % 64, 0u);
  EXPECT_EQ(content.substr(8, header.size()), header);
  EXPECT_EQ(content.substr(8 + header.size(), length - header.size()),
            std::string(length - header.size(), ' '));
  EXPECT_EQ(content.substr(8 + length), data);
}

// Of format 1 of checkpoints: of header and data, one after the other.
TEST(Safetensors, DigestsOfBeforeAreChecked) {
  TempFolder folder;
  const std::string described = R"("a":{"data_offsets":[0,4],"dtype":"F32","shape":[1]}})";
  const std::string data = "\x01\x02\x03\x04";
  kit::Digest digest;
  digest.Add(("{" + described + data).data(), 1 + described.size() + data.size());
  for (const bool damaged : {false, true}) {
    const std::string header =
        R"({"__metadata__":{"digest":")" + digest.Text() + R"("},)" + described;
    const uint64_t length = header.size();
    const std::string path =
        folder.Write("model", std::string(reinterpret_cast<const char*>(&length), 8) + header +
                                  (damaged ? "\x01\x02\x03\x05" : data));
    const auto file = SafetensorsFile::Open(path);
    EXPECT_EQ(file.ok(), !damaged);
    if (damaged) {
      EXPECT_THAT(file.status(), FailsWith(StatusCode::kBadData, HasSubstr("digest")));
    }
  }
}

// However it is cut at blocks, in whatever order; each bit and its place count.
TEST(DataDigest, IsTheSumOfItsParts) {
  std::vector<uint8_t> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7);
  DataDigest whole, parts;
  whole.Add(40, data.data(), data.size());
  DataDigest last;
  last.Add(40 + 640, &data[640], 360);
  parts.Add(40 + 128, &data[128], 512);
  ASSERT_TRUE(parts.Add(last.Text()));
  EXPECT_NE(parts.Text(), whole.Text());
  parts.Add(40, data.data(), 128);
  EXPECT_EQ(parts.Text(), whole.Text());
  DataDigest moved, changed;
  moved.Add(104, data.data(), data.size());
  data[999] ^= 1;
  changed.Add(40, data.data(), data.size());
  EXPECT_NE(moved.Text(), whole.Text());
  EXPECT_NE(changed.Text(), whole.Text());
  EXPECT_FALSE(parts.Add("xxh3_128:0123"));
}

TEST(Safetensors, NoTensorsAtAllIsAFile) {
  TempFolder folder;
  ASSERT_THAT(WriteSafetensors(folder / "none", {}, {{"k", "v"}}), IsOk());
  const auto file = ValueOf(SafetensorsFile::Open(folder / "none"));
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->metadata().at("k"), "v");
}

TEST(Safetensors, WhatWasReadCanBeWrittenAgain) {
  TempFolder folder;
  std::vector<float> values = {1, 2};
  const std::vector<NamedTensor> tensors = {{"a", View(values, {2})}};
  ASSERT_THAT(WriteSafetensors(folder / "first", tensors, {{"k", "v"}}), IsOk());
  const auto first = ValueOf(SafetensorsFile::Open(folder / "first"));
  ASSERT_THAT(WriteSafetensors(folder / "second", first->tensors(), first->metadata()), IsOk());
  EXPECT_EQ(ReadWhole(folder / "first"), ReadWhole(folder / "second"));
}

TEST(Safetensors, RefusesToWriteWhatCouldNotBeRead) {
  TempFolder folder;
  const std::string path = folder.Write("model", "old");
  std::vector<float> values = {1, 2};
  const TensorView view = View(values, {2});
  const std::vector<std::vector<NamedTensor>> wrong = {
      {{"a", view}, {"a", view}},
      {{"__metadata__", view}},
      {{"\xff", view}},
      {{"no memory", {nullptr, {2}, DType::kFloat32}}},
      {{"negative", {values.data(), {-1}, DType::kFloat32}}},
      {{"overflow", {values.data(), {int64_t{1} << 62, 8}, DType::kFloat32}}},
  };
  for (const auto& tensors : wrong) {
    const Status status = WriteSafetensors(path, tensors, {});
    EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, HasSubstr(path)))
        << tensors[0].name;
  }
  EXPECT_EQ(WriteSafetensors(path, {}, {{"k", "\xff"}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWhole(path), "old");
}

// Written by another program: tests/golden/make_golden.py.
TEST(Safetensors, TheGoldenFilesAreRead) {
  const std::string folder = ENGINE_TEST_SOURCE_DIR "/tests/golden/";
  for (const char* name : {"mlp.safetensors", "gpt.safetensors"}) {
    const auto file = ValueOf(SafetensorsFile::Open(folder + name));
    const auto loss = ValueOf(file->Find("loss"));
    EXPECT_EQ(loss.shape.ndim, 0);
    EXPECT_FLOAT_EQ(*loss.f32(), std::stof(file->metadata().at("loss")));
    const auto target = ValueOf(file->Find("target"));
    EXPECT_EQ(target.dtype, DType::kInt32);
  }
}

TEST(Safetensors, AMissingFileIsMissingInput) {
  TempFolder folder;
  EXPECT_THAT(SafetensorsFile::Open(folder / "nothing").status(),
              FailsWith(StatusCode::kMissingInput, HasSubstr(folder / "nothing")));
  EXPECT_EQ(WriteSafetensors(folder / "no/model", {}, {}).code(), StatusCode::kStorage);
}

}  // namespace
}  // namespace engine::checkpoint
