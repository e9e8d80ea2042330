// Files of weights as other programs write them.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace engine::test {

struct ForeignTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// 0, 1, 2, ... with these extents, in float32.
inline ForeignTensor Counting(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
  return {name, "F32", shape, Bytes(values)};
}

inline std::string Safetensors(const std::vector<ForeignTensor>& tensors,
                               const std::string& format = "pt") {
  nlohmann::json header = {{"__metadata__", {{"format", format}}}};
  std::string data;
  for (const ForeignTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  return Bytes(std::vector{static_cast<uint64_t>(text.size())}) + text + data;
}

}  // namespace engine::test
