// Devices as cuDNN describes them, in JSON.
#pragma once

#include <ostream>
#include <string>

namespace engine::cuda_ops::test {

struct DescribedDevice {
  const char* name;
  int capability;  // 900
  int multiprocessors;
  int shared_bytes;  // of a block that opts in
  long long memory_bytes;
};

inline void PrintTo(const DescribedDevice& device, std::ostream* out) {
  *out << device.name;
}

constexpr DescribedDevice kA100 = {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 85'000'000'000};
constexpr DescribedDevice kH100 = {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 85'000'000'000};
constexpr DescribedDevice kH200 = {"NVIDIA H200", 900, 132, 232448, 150'000'000'000};

inline std::string Json(const DescribedDevice& device) {
  const auto number = [](const char* name, long long value) {
    return std::string(",\"") + name + "\":" + std::to_string(value);
  };
  return std::string("{\"version\":1,\"deviceName\":\"") + device.name + '"' +
         number("cudaDeviceId", 0) + number("deviceVer", device.capability) +
         number("multiProcessorCount", device.multiprocessors) + number("driverVer", 13000) +
         number("totalGlobalMem", device.memory_bytes) +
         ",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]" +
         number("regsPerBlock", 65536) + number("warpSize", 32) +
         number("maxSharedMemoryPerBlock", 49152) +
         number("maxSharedMemoryPerBlockOptin", device.shared_bytes) +
         number("reservedSharedMemoryPerBlock", 1024) + number("maxRegistersPerSM", 65536) +
         number("maxCtasPerSM", 32) + number("maxThreadsPerBlock", 1024) +
         number("maxThreadsPerSM", 2048) + number("pciDeviceId", 0) + number("isTccDriver", 0) +
         number("supportCoopLaunch", 1) + number("smClockRateKHz", 1500000) +
         number("memClockRateKHz", 2000000) + number("l2CacheSize", 50'000'000) + '}';
}

}  // namespace engine::cuda_ops::test
