// sgd and adamw where parameters lie in the memory of an accelerator: as in host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/async_accelerator.h"
#include "tests/support/elements.h"
#include "tests/support/memory_host.h"
#include "tools/conform/optimizer/optimizer_rig.h"

namespace engine::test {
namespace {

// More spans than a plugin passes on at once, of many sizes.
constexpr size_t kSpans = 150;
constexpr int64_t kTimeoutMs = 60000;
constexpr float kScale = 0.7f;

struct DeviceCase {
  const char* plugin;
  OptionValues::Overrides options;
  float tolerance;  // of the largest value; 0: the same bits
};

// Arrays in device memory, of floats or of half as large elements.
class DeviceArrays {
 public:
  explicit DeviceArrays(AsyncAccelerator& device) : device_(device) {
    Stream* stream = nullptr;
    EXPECT_TRUE(device.CreateStream(&stream).ok());
    stream_.reset(stream);
  }
  ~DeviceArrays() {
    for (void* memory : owned_) device_.Free(memory);
  }
  template <typename T>
  T* Make(const std::vector<T>& values) {
    void* memory = nullptr;
    EXPECT_TRUE(device_.Allocate(std::max<size_t>(values.size(), 1) * sizeof(T), &memory).ok());
    owned_.push_back(memory);
    Write(static_cast<T*>(memory), values);
    return static_cast<T*>(memory);
  }
  template <typename T>
  void Write(T* to, const std::vector<T>& values) {
    EXPECT_TRUE(device_.Copy(to, values.data(), values.size() * sizeof(T), stream_.get()).ok());
  }
  template <typename T>
  std::vector<T> Read(const T* from, size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(device_.Copy(values.data(), from, count * sizeof(T), stream_.get()).ok());
    EXPECT_TRUE(stream_->Synchronize(kTimeoutMs).ok());
    return values;
  }
  Stream* stream() const { return stream_.get(); }

 private:
  AsyncAccelerator& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<void*> owned_;
};

// A span and its factors, on the host and on the device.
struct SpanUnderTest {
  std::unique_ptr<OptimizerRig> rig;
  float rate_scale = 1, decay_scale = 1;
  float* gradient = nullptr;
  UpdateCall call;
};

class OptimizerOnDevice : public testing::TestWithParam<DeviceCase> {};

TEST_P(OptimizerOnDevice, UpdatesManySpansAsOnTheHost) {
  AsyncAccelerator device;
  DeviceArrays arrays(device);
  MemoryHost device_host({}, std::make_shared<MemoryStoreTable>(), &device);
  const std::string path = PluginPath(GetParam().plugin);
  const auto on_host = CreateFrom<Optimizer>(path, GetParam().options);
  const auto on_device = CreateFrom<Optimizer>(path, GetParam().options, &device_host);
  EXPECT_EQ(Query<SpanUpdates>(*on_host), nullptr);
  auto* const spans = Query<SpanUpdates>(*on_device);
  ASSERT_NE(spans, nullptr);
  const auto states = static_cast<size_t>(on_device->traits().state_count);
  auto* const scalars = arrays.Make<StepScalars>({{}});
  const float* const scale = arrays.Make<float>({kScale});
  std::vector<SpanUnderTest> all(kSpans);
  for (size_t s = 0; s < kSpans; ++s) {
    const size_t count = s * 37 % 101;
    const std::vector<float> value = RandomFloats(count, static_cast<uint32_t>(s));
    all[s].rig = std::make_unique<OptimizerRig>(*on_host, value);
    all[s].rate_scale = s % 3 == 0 ? 0.5f : 1;
    all[s].decay_scale = s % 2 == 0 ? 1.0f : 0;
    all[s].gradient = arrays.Make(std::vector<float>(count));
    all[s].call = {.value = arrays.Make(value),
                   .gradient = all[s].gradient,
                   .count = static_cast<int64_t>(count),
                   .learning_rate = std::numeric_limits<float>::quiet_NaN(),  // not for the device
                   .weight_decay_scale = all[s].decay_scale,
                   .learning_rate_scale = all[s].rate_scale,
                   .step = 0,
                   .stream = arrays.stream(),
                   .device_scale = scale,
                   .scalars = scalars,
                   .value_bf16 = s % 5 == 0 ? nullptr : arrays.Make(std::vector<uint16_t>(count))};
    for (size_t i = 0; i < states; ++i) {
      all[s].call.states[i] = arrays.Make(std::vector<float>(count, 0));
    }
  }
  for (uint32_t step = 1; step <= 5; ++step) {
    const float rate = 0.1f / static_cast<float>(step);
    arrays.Write(scalars, {{.update_step = step, .learning_rate = rate}});
    std::vector<UpdateCall> calls;
    for (size_t s = 0; s < kSpans; ++s) {
      const auto count = static_cast<size_t>(all[s].call.count);
      const std::vector<float> gradient =
          RandomFloats(count, step * 1000 + static_cast<uint32_t>(s));
      arrays.Write(all[s].gradient, gradient);
      calls.push_back(all[s].call);
      Must(all[s].rig->Update(gradient, step,
                              {.gradient_scale = kScale,
                               .learning_rate = rate * all[s].rate_scale,
                               .weight_decay_scale = all[s].decay_scale}));
    }
    // Together, and one by one.
    if (step != 3) {
      ASSERT_TRUE(spans->Update(calls).ok());
    } else {
      for (const UpdateCall& call : calls) ASSERT_TRUE(on_device->Update(call).ok());
    }
    // Calls are the caller's again when Update has returned.
    std::fill(calls.begin(), calls.end(), UpdateCall{});
  }
  const float tolerance = GetParam().tolerance;
  for (const SpanUnderTest& span : all) {
    const auto count = static_cast<size_t>(span.call.count);
    const auto expect_same = [&](const float* made, const std::vector<float>& wanted) {
      const std::vector<float> read = arrays.Read(made, count);
      for (size_t i = 0; i < count; ++i) ASSERT_NEAR(read[i], wanted[i], tolerance) << i;
      if (tolerance == 0) {
        ASSERT_EQ(read, wanted);
      }
    };
    expect_same(span.call.value, span.rig->value());
    for (size_t i = 0; i < states; ++i) expect_same(span.call.states[i], span.rig->states()[i]);
    if (span.call.value_bf16 == nullptr) continue;
    const auto value = arrays.Read(span.call.value, count);
    const auto rounded = arrays.Read(static_cast<const uint16_t*>(span.call.value_bf16), count);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(rounded[i], ToBFloat16(value[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plugins, OptimizerOnDevice,
    testing::Values(
        DeviceCase{"sgd", {}, 0}, DeviceCase{"sgd", {{"momentum", "0.9"}}, 0},
        DeviceCase{"sgd", {{"momentum", "0.8"}, {"nesterov", "true"}, {"weight_decay", "0.1"}}, 0},
        DeviceCase{"adamw", {}, 3e-6f},
        DeviceCase{"adamw", {{"beta1", "0.7"}, {"weight_decay", "0.3"}}, 3e-6f}));

}  // namespace
}  // namespace engine::test
