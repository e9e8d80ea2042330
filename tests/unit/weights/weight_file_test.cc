#include "app/weights/weight_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/weights/weight_writing.h"

namespace engine::test {
namespace {

using weights::ReadFloats;
using weights::WeightFile;

TEST(WeightFile, ReadsEveryFloatingPointTypeOfSafetensors) {
  TempFolder folder;
  const std::string path = folder.Write(
      "hub.safetensors",
      Safetensors({{"f64", "F64", {2}, Bytes(std::vector{1.0 / 3, -2.0})},
                   {"f16", "F16", {2}, Bytes(std::vector<uint16_t>{0x3c00, 0xc400})},
                   {"bf16", "BF16", {1}, Bytes(std::vector<uint16_t>{0xbf80})},
                   {"one", "U8", {1}, "x"},  // the next one is not aligned
                   {"f32", "F32", {1, 2}, Bytes(std::vector{0.5f, 1e30f})},
                   {"num_batches_tracked", "I64", {}, Bytes(std::vector{int64_t{7}})}}));
  const auto file = ValueOf(WeightFile::Open(path));
  EXPECT_FALSE(file->is_checkpoint());
  std::map<std::string, std::vector<float>> floats;
  std::vector<std::string> others;
  for (const auto& tensor : file->tensors()) {
    if (tensor.element == 0) {
      others.push_back(tensor.name);
    } else {
      floats[tensor.name] = ReadFloats(tensor);
    }
  }
  EXPECT_THAT(floats["f64"], ElementsAre(1.0f / 3, -2));
  EXPECT_THAT(floats["f16"], ElementsAre(1, -4));
  EXPECT_THAT(floats["bf16"], ElementsAre(-1));
  EXPECT_THAT(floats["f32"], ElementsAre(0.5f, 1e30f));
  EXPECT_THAT(others, ::testing::UnorderedElementsAre("one", "num_batches_tracked"));
}

onnx::ModelProto SmallModel() {
  onnx::ModelProto model;
  auto* raw = model.mutable_graph()->add_initializer();
  raw->set_name("raw");
  raw->set_data_type(onnx::TensorProto::FLOAT);
  raw->add_dims(2);
  raw->set_raw_data(Bytes(std::vector{1.5f, -2.0f}));
  auto* listed = model.mutable_graph()->add_initializer();
  listed->set_name("listed");
  listed->set_data_type(onnx::TensorProto::FLOAT16);
  listed->add_dims(1);
  listed->add_int32_data(0x3c00);
  auto* beside = model.mutable_graph()->add_initializer();
  beside->set_name("beside");
  beside->set_data_type(onnx::TensorProto::DOUBLE);
  beside->add_dims(2);
  beside->set_data_location(onnx::TensorProto::EXTERNAL);
  const std::pair<const char*, const char*> where[] = {{"location", "net.data"}, {"offset", "8"}};
  for (const auto& [key, value] : where) {
    auto* entry = beside->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  return model;
}

TEST(WeightFile, ReadsInitialisersOfOnnxInTheFileAndBesideIt) {
  TempFolder folder;
  folder.Write("net.data", Bytes(std::vector{0.0, 0.25, 4.0}));
  const auto file =
      ValueOf(WeightFile::Open(folder.Write("net.onnx", SmallModel().SerializeAsString())));
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_THAT(ReadFloats(file->tensors()[0]), ElementsAre(1.5f, -2));
  EXPECT_THAT(ReadFloats(file->tensors()[1]), ElementsAre(1));
  EXPECT_THAT(ReadFloats(file->tensors()[2]), ElementsAre(0.25f, 4));
}

TEST(WeightFile, SaysWhereAnOnnxModelIsDamaged) {
  TempFolder folder;
  folder.Write("net.data", Bytes(std::vector{0.0, 0.25, 4.0}));
  const auto open = [&](const std::string& bytes) {
    return WeightFile::Open(folder.Write("net.onnx", bytes)).status();
  };
  const std::string whole = SmallModel().SerializeAsString();
  EXPECT_THAT(open(whole.substr(0, whole.size() - 5)),
              FailsWith(StatusCode::kBadData, AllOf(HasSubstr("net.onnx"), HasSubstr("at byte"),
                                                    HasSubstr(std::to_string(whole.size() - 5)))));
  EXPECT_THAT(open("no model"), FailsWith(StatusCode::kBadData, HasSubstr("at byte")));

  onnx::ModelProto short_data = SmallModel();
  short_data.mutable_graph()->mutable_initializer(0)->add_dims(3);
  EXPECT_THAT(open(short_data.SerializeAsString()),
              FailsWith(StatusCode::kBadData,
                        AllOf(HasSubstr("'raw'"), HasSubstr("8 bytes"), HasSubstr("needs 24"))));
  onnx::ModelProto elsewhere = SmallModel();
  elsewhere.mutable_graph()->mutable_initializer(2)->mutable_external_data(0)->set_value(
      "../net.data");
  EXPECT_THAT(open(elsewhere.SerializeAsString()),
              FailsWith(StatusCode::kBadData, HasSubstr("'../net.data'")));
}

TEST(WeightFile, SaysWhatIsWrongWithSafetensors) {
  TempFolder folder;
  const std::string whole = Safetensors({Counting("w", {4})});
  const auto open = [&](const std::string& bytes) {
    return WeightFile::Open(folder.Write("w.safetensors", bytes)).status();
  };
  EXPECT_THAT(open(whole.substr(0, whole.size() - 1)),
              FailsWith(StatusCode::kBadData, AllOf(HasSubstr("'w'"), HasSubstr("[0, 16]"))));
  EXPECT_THAT(open(Safetensors({{"w", "F8_E4M3", {1}, "x"}})),
              FailsWith(StatusCode::kBadData, HasSubstr("F8_E4M3")));
  EXPECT_THAT(WeightFile::Open(folder / "none").status(),
              FailsWith(StatusCode::kMissingInput, HasSubstr("none")));
}

}  // namespace
}  // namespace engine::test
