// What a step of a GPT copies from device memory to device memory: nothing. This program takes the
// place of the runtime's function for copies and calls it.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>

#include "core/exec/executor.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

namespace {

std::atomic<size_t> copied_bytes{0};  // from device to device
std::atomic<size_t> other_copies{0};

// Of the runtime that the plugin has loaded.
template <typename Function>
Function* InRuntime(const char* name, Function*) {
  void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  ENGINE_CHECK(runtime != nullptr, "%s", dlerror());
  return reinterpret_cast<Function*>(dlsym(runtime, name));
}

bool OnDevice(const void* address) {
  static auto* const ask =
      InRuntime("cudaPointerGetAttributes",
                static_cast<cudaError_t (*)(cudaPointerAttributes*, const void*)>(nullptr));
  cudaPointerAttributes attributes{};
  return ask(&attributes, address) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) cudaError_t cudaMemcpyAsync(
    void* target, const void* source, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  static auto* const copy = InRuntime("cudaMemcpyAsync", &cudaMemcpyAsync);
  if (OnDevice(target) && OnDevice(source)) {
    copied_bytes += size_bytes;
  } else {
    ++other_copies;
  }
  return copy(target, source, size_bytes, kind, stream);
}

namespace engine::test {
namespace {

constexpr int64_t kContext = 8, kSamples = 2;

TEST(DeviceCopies, AStepOfAGptMakesNone) {
  for (const char* precision : {"float32", "bf16"}) {
    SCOPED_TRACE(precision);
    const auto [rank, executor] = MakeRankWithExecutor(
        "model { gpt { layers: 3 width: 64 heads: 1 tied: true } } data { text { path: \"none\" } "
        "}\n"
        "train { steps: 2 global_batch: 2 } clip_norm { max_norm: 1 }\n"
        "cuda_ops { tune: \"off\" precision: \"" +
            std::string(precision) + "\" }\nplugins: [\"null\", \"priority_sched\", \"adamw\", \"" +
            OpsUnderTest() + "\", \"clip_norm\"]\n",
        {.input_shape = {kContext},
         .input_dtype = DType::kInt32,
         .target_shape = {kContext},
         .classes = 256,
         .max_samples = kSamples});
    ASSERT_TRUE(executor);
    const std::vector<int32_t> tokens(kContext * kSamples, 7);
    const auto step = [&, &executor = executor](uint64_t number) {
      return StepAndFlush(*executor, {.input = tokens.data(),
                                      .target = tokens.data(),
                                      .samples = kSamples,
                                      .step = number,
                                      .learning_rate = 0.01f});
    };
    ASSERT_TRUE(step(1).ok());
    copied_bytes = other_copies = 0;
    ASSERT_TRUE(step(2).ok());
    EXPECT_GT(other_copies, 0u) << "copies of batches are not seen here";
    EXPECT_EQ(copied_bytes, 0u) << "an activation has " << kContext * kSamples * 64 << " elements";
  }
}

}  // namespace
}  // namespace engine::test
