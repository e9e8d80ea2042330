// Blas over the fake cuBLASLt: every layout, type and epilogue against sums in double precision,
// what is measured when, and what the file of choices does.
#include "blas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <numbers>
#include <random>
#include <thread>
#include <vector>

#include "tests/emulated_cuda/device_array.h"
#include "tests/emulated_cuda/runtime.h"
#include "tests/support/elements.h"
#include "tests/support/temp_folder.h"

namespace engine::cuda_ops {
namespace {

using Values = std::vector<double>;

// Device memory with numbers in float32 or bfloat16.
class DeviceNumbers {
 public:
  DeviceNumbers(DType dtype, const Values& values)
      : dtype_(dtype), memory_(values.size() * SizeOf(dtype)) {
    std::vector<char> raw(values.size() * SizeOf(dtype));
    for (size_t i = 0; i < values.size(); ++i) test::WriteElement(dtype, raw.data(), i, values[i]);
    memory_.Write(raw);
  }

  void* data() const { return memory_.data(); }
  Values Read() const {
    const std::vector<char> raw = memory_.Read();
    Values values(raw.size() / SizeOf(dtype_));
    for (size_t i = 0; i < values.size(); ++i) values[i] = test::ReadElement(dtype_, raw.data(), i);
    return values;
  }

 private:
  const DType dtype_;
  emulated_cuda::Array<char> memory_;
};

// Numbers that both types hold exactly.
Values Numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = (static_cast<double>(random() % 129) - 64) / 64;
  return values;
}

bool AddsBias(Epilogue epilogue) {
  return epilogue >= Epilogue::kBias && epilogue <= Epilogue::kGeluAuxBias;
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

class BlasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = CudaDevice::Create(0, 0, &device_);
    ASSERT_TRUE(status.ok()) << status.message();
    Stream* stream = nullptr;
    ASSERT_TRUE(device_->CreateStream(&stream).ok());
    stream_.reset(stream);
    Use({});
  }
  void TearDown() override {
    blas_.reset();
    stream_.reset();
  }

  void Use(const Blas::Settings& settings) {
    ASSERT_TRUE(Blas::Create(*device_, settings, &blas_).ok());
  }
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_->native()); }

  struct Operands {
    Values a, b, bias, before;
  };
  static Operands OperandsOf(const MatrixProduct& product) {
    return {Numbers(product.m * product.k, 1), Numbers(product.k * product.n, 2),
            Numbers(product.m + product.n, 3), Numbers(product.m * product.n, 4)};
  }

  // The same on the device; d and aux hold what is there before.
  struct OnDevice {
    OnDevice(const MatrixProduct& product, const Operands& of)
        : a(product.factors, of.a),
          b(product.factors, of.b),
          d(product.result, of.before),
          bias(product.result, of.bias),
          aux(product.result, of.before),
          pointers{a.data(), b.data(), d.data(), bias.data(), aux.data()} {}
    const DeviceNumbers a, b, d, bias, aux;
    const MatrixOperands pointers;
  };

  // The product, before gelu or its gradient.
  static Values Expected(const MatrixProduct& product, const Operands& operands) {
    const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
    Values d(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<size_t>(i * n + j);
        double sum = product.sum ? operands.before[at] : 0;
        if (AddsBias(product.epilogue)) sum += operands.bias[static_cast<size_t>(j)];
        for (int64_t l = 0; l < k; ++l) {
          sum += operands.a[static_cast<size_t>(product.a_transposed ? l * m + i : i * k + l)] *
                 operands.b[static_cast<size_t>(product.b_transposed ? j * k + l : l * n + j)];
        }
        d[at] = sum;
      }
    }
    return d;
  }

  static void ExpectNear(const Values& got, const Values& want, DType dtype, const char* what) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double rounding = dtype == DType::kBFloat16 ? 0x1p-8 : 1e-6;
      ASSERT_NEAR(got[i], want[i], rounding * std::abs(want[i]) + 1e-5) << what << " at " << i;
    }
  }

  // Whether there is an algorithm; if so, the result is looked at.
  bool Check(const MatrixProduct& product) {
    const Operands operands = OperandsOf(product);
    const OnDevice on_device(product, operands);
    const Result<bool> supported = blas_->Fuses(product, on_device.pointers, native(), nullptr);
    EXPECT_TRUE(supported.ok()) << supported.status().message();
    if (!supported.ok() || !*supported) return false;
    const Status status = blas_->Multiply(product, on_device.pointers, native());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(stream_->Synchronize(10'000).ok());
    Values want = Expected(product, operands);
    if (product.epilogue == Epilogue::kGeluAuxBias) {
      ExpectNear(on_device.aux.Read(), want, product.result, "aux");
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const double x = operands.before[i];
      if (product.epilogue == Epilogue::kGeluGradient) {
        want[i] *= (Gelu(x + 1e-5) - Gelu(x - 1e-5)) / 2e-5;
      } else if (AddsBias(product.epilogue) && product.epilogue != Epilogue::kBias) {
        want[i] = Gelu(want[i]);
      }
    }
    if (product.epilogue == Epilogue::kBiasGradient) {  // a product with ones
      Values sums = Expected({product.m, 1, product.k, product.a_transposed},
                             {operands.a, Values(operands.b.size(), 1)});
      sums.insert(sums.end(), operands.bias.begin() + product.m, operands.bias.end());
      ExpectNear(on_device.bias.Read(), sums, product.result, "bias");
    }
    ExpectNear(on_device.d.Read(), want, product.result, "d");
    return true;
  }

  test::TempFolder folder_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Blas> blas_;
};

TEST_F(BlasTest, EveryLayoutAndTypeIsRowMajor) {
  for (const Tune tune : {Tune::kOff, Tune::kTime}) {
    Use({.tune = tune});
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        for (const bool sum : {false, true}) {
          for (const auto& [factors, result] : {std::pair{DType::kFloat32, DType::kFloat32},
                                                std::pair{DType::kBFloat16, DType::kBFloat16},
                                                std::pair{DType::kBFloat16, DType::kFloat32}}) {
            EXPECT_TRUE(Check({.m = 5,
                               .n = 7,
                               .k = 3,
                               .a_transposed = a_transposed,
                               .b_transposed = b_transposed,
                               .factors = factors,
                               .result = result,
                               .sum = sum}))
                << "transposed " << a_transposed << b_transposed << " sum " << sum;
          }
        }
      }
    }
  }
}

TEST_F(BlasTest, EpiloguesAreAppliedByColumn) {
  for (const Epilogue epilogue : {Epilogue::kBias, Epilogue::kGeluBias, Epilogue::kGeluAuxBias,
                                  Epilogue::kGeluGradient, Epilogue::kBiasGradient}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      MatrixProduct product = {.m = 5, .n = 16, .k = 8, .factors = dtype, .result = dtype};
      product.epilogue = epilogue;
      product.b_transposed = AddsBias(epilogue);
      product.a_transposed = product.sum = epilogue == Epilogue::kBiasGradient;
      if (product.sum) product.result = DType::kFloat32;
      EXPECT_TRUE(Check(product)) << static_cast<int>(epilogue);
    }
  }
}

TEST_F(BlasTest, AnEpilogueThatTheLibraryHasNotIsSaidSo) {
  EXPECT_FALSE(Check({.m = 5,
                      .n = 7,  // not a multiple of 8
                      .k = 8,
                      .b_transposed = true,
                      .factors = DType::kBFloat16,
                      .result = DType::kBFloat16,
                      .epilogue = Epilogue::kGeluAuxBias}));
}

TEST_F(BlasTest, Tf32RoundsFactors) {
  const MatrixProduct product = {.m = 1, .n = 1, .k = 1};
  const double fine = 1 + 0x1p-20;
  for (const bool tf32 : {false, true}) {
    Use({.tf32 = tf32});
    const DeviceNumbers a(DType::kFloat32, {fine}), b(DType::kFloat32, {1}),
        d(DType::kFloat32, {0});
    ASSERT_TRUE(blas_->Multiply(product, {a.data(), b.data(), d.data()}, native()).ok());
    ASSERT_TRUE(stream_->Synchronize(10'000).ok());
    EXPECT_EQ(d.Read()[0], tf32 ? 1.0 : fine);
  }
}

TEST_F(BlasTest, EachShapeIsMeasuredOnceForAllRunsWithAFile) {
  const std::string path = folder_ / "tune.txt";
  for (const int32_t measured : {1, 0}) {
    Use({.tune = Tune::kTime, .tune_file = path});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(Check({.m = 5, .n = 7, .k = 3, .sum = true}));
    EXPECT_EQ(blas_->measured(), measured);
    EXPECT_TRUE(Check({.m = 5, .n = 7, .k = 4}));
    EXPECT_EQ(blas_->measured(), 2 * measured);
  }
  for (const Tune tune : {Tune::kOff, Tune::kBits}) {
    Use({.tune = tune});
    EXPECT_TRUE(Check({.m = 5, .n = 7, .k = 3}));
    EXPECT_EQ(blas_->measured(), 0);
  }
}

// The fake library has three algorithms for a shape, which add up in 1, 2 and 3 parts, so their
// bits differ. Its first proposal for a long sum is the one with 2.
TEST_F(BlasTest, TheFileDecidesAndElseTheFirstProposal) {
  const MatrixProduct product = {.m = 3, .n = 5, .k = 6000};
  Operands operands = OperandsOf(product);
  for (Values* values : {&operands.a, &operands.b}) {  // whose sums depend on their order
    for (double& value : *values) value = std::sin(100 * value);
  }
  const OnDevice on_device(product, operands);
  const auto multiply = [&](const Blas::Settings& settings) {
    Use(settings);
    EXPECT_TRUE(blas_->Multiply(product, on_device.pointers, native()).ok());
    EXPECT_TRUE(stream_->Synchronize(10'000).ok());
    return on_device.d.Read();
  };
  const std::string measured = folder_ / "measured.txt";
  multiply({.tune = Tune::kTime, .tune_file = measured});
  std::ifstream file(measured);
  std::string key;
  for (int i = 0; i < 2; ++i) std::getline(file, key);  // the line after the header
  key.resize(key.rfind(" ="));
  cublasLtMatmulAlgo_t choice;
  ASSERT_TRUE(TuneFile(measured, nullptr).Find(key, &choice));
  std::vector<Values> by_parts;
  for (const uint64_t parts : {1, 2, 3}) {
    choice.data[2] = parts - 1;
    choice.data[3] = parts == 1 ? 0 : 15 * parts * sizeof(float);  // workspace
    const std::string path = folder_ / ("parts" + std::to_string(parts));
    TuneFile kept(path, nullptr);
    EXPECT_FALSE(kept.Find(key, nullptr));
    kept.Keep(key, &choice);
    by_parts.push_back(multiply({.tune = Tune::kTime, .tune_file = path}));
    EXPECT_EQ(blas_->measured(), 0);
  }
  EXPECT_NE(by_parts[0], by_parts[1]);
  EXPECT_NE(by_parts[1], by_parts[2]);
  EXPECT_NE(by_parts[0], by_parts[2]);
  EXPECT_EQ(multiply({.tune = Tune::kBits}), by_parts[0]);
  EXPECT_EQ(multiply({.tune = Tune::kOff}), by_parts[1]);
}

TEST_F(BlasTest, AnEpilogueIsLeftToTheLibraryUnlessStepsAreFaster) {
  const MatrixProduct product = {
      .m = 8, .n = 8, .k = 5000, .epilogue = Epilogue::kBiasGradient, .sum = true};
  const Operands operands = OperandsOf(product);
  const OnDevice on_device(product, operands);
  const auto fuses = [&](Tune tune, const char* file, int milliseconds) {
    Use({.tune = tune, .tune_file = folder_ / file});
    const auto steps = [&](const MatrixOperands&) {
      const auto sleep = [=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        return cudaSuccess;
      };
      EXPECT_EQ(emulated_cuda::Enqueue(native(), sleep), cudaSuccess);
      return Status();
    };
    return blas_->Fuses(product, on_device.pointers, native(), steps);
  };
  EXPECT_TRUE(*fuses(Tune::kOff, "", 0));
  EXPECT_TRUE(*fuses(Tune::kTime, "slow", 20));
  EXPECT_TRUE(*fuses(Tune::kTime, "slow", 0)) << "the file has been asked";
  EXPECT_FALSE(*fuses(Tune::kTime, "fast", 0));
  EXPECT_FALSE(*fuses(Tune::kTime, "fast", 20));
  EXPECT_EQ(on_device.d.Read(), operands.before);
}

// The device has not come to the point where the memory is no longer used.
TEST_F(BlasTest, FreeingMemoryWaitsForNothing) {
  void* memory = nullptr;
  ASSERT_TRUE(device_->Allocate(1000, &memory).ok());
  std::promise<void> go_on;
  ASSERT_EQ(emulated_cuda::Enqueue(native(), [&] { return go_on.get_future().get(), cudaSuccess; }),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory, 1, 1000, native()), cudaSuccess);
  device_->Free(memory);
  EXPECT_EQ(cudaStreamQuery(native()), cudaErrorNotReady);
  go_on.set_value();
  EXPECT_TRUE(stream_->Synchronize(10'000).ok());
}

TEST_F(BlasTest, NothingIsMeasuredInARecording) {
  Use({.tune = Tune::kTime});
  const MatrixProduct product = {.m = 5, .n = 7, .k = 3};
  const Operands operands = OperandsOf(product);
  const OnDevice on_device(product, operands);
  ASSERT_TRUE(
      *blas_->Fuses(product, on_device.pointers, native(), nullptr));  // allocates the workspace
  ASSERT_TRUE(device_->BeginRecording(stream_.get()).ok());
  EXPECT_TRUE(blas_->Multiply(product, on_device.pointers, native()).ok());
  Recording* recording = nullptr;
  ASSERT_TRUE(device_->EndRecording(stream_.get(), &recording).ok());
  const std::unique_ptr<Recording> owned(recording);
  EXPECT_EQ(blas_->measured(), 0);
  EXPECT_EQ(on_device.d.Read(), operands.before);
  ASSERT_TRUE(recording->Launch(stream_.get()).ok());
  ASSERT_TRUE(stream_->Synchronize(10'000).ok());
  ExpectNear(on_device.d.Read(), Expected(product, operands), DType::kFloat32, "d");
}

}  // namespace
}  // namespace engine::cuda_ops
