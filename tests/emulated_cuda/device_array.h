// Device memory for tests of the emulator.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

namespace emulated_cuda {

template <typename T>
class Array {
 public:
  explicit Array(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), cudaSuccess);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) { Write(values); }
  ~Array() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Array(const Array&) = delete;

  T* data() const { return data_; }

  void Write(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  // After the work of the default stream.
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  const size_t size_;
};

}  // namespace emulated_cuda
