// How Blas finds the fastest algorithm for a shape.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "blas_plan.h"
#include "cuda_error.h"
#include "kernels/fingerprint.h"

namespace engine::cuda_ops {
namespace {

constexpr int kRepetitions = 4;
// A later proposal must be this much faster than an earlier one: what differs by less differs from
// run to run.
constexpr float kClearlyFaster = 0.98f;
constexpr std::chrono::seconds kMeasureTimeout{60};

class TimedEvent {
 public:
  ~TimedEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  Status Record(cudaStream_t stream) noexcept {
    if (event_ == nullptr) CUDA_OPS_RETURN_IF_ERROR(cudaEventCreate(&event_), "creating an event");
    CUDA_OPS_RETURN_IF_ERROR(cudaEventRecord(event_, stream), "recording an event");
    return {};
  }

  Status Wait() noexcept {
    const auto deadline = std::chrono::steady_clock::now() + kMeasureTimeout;
    cudaError_t error = cudaEventQuery(event_);
    while (error == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) {
        return Status::Error(StatusCode::kTimeout, "the device did not do %d products in %lld s",
                             kRepetitions, static_cast<long long>(kMeasureTimeout.count()));
      }
      std::this_thread::yield();
      error = cudaEventQuery(event_);
    }
    return ToStatus(error, "measuring a matrix product");
  }

  Status Since(const TimedEvent& begin, float* milliseconds) const noexcept {
    return ToStatus(cudaEventElapsedTime(milliseconds, begin.event_, event_),
                    "measuring a matrix product");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of a device for as long as this lives.
class Scratch {
 public:
  explicit Scratch(CudaDevice& device) noexcept : device_(device) {}
  ~Scratch() {
    if (data_ != nullptr) device_.Free(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status Allocate(size_t size_bytes) noexcept { return device_.Allocate(size_bytes, &data_); }
  void* data() const noexcept { return data_; }

 private:
  CudaDevice& device_;
  void* data_ = nullptr;
};

// Of one algorithm: of d, then of aux.
constexpr size_t kParts = 2 * kFingerprintParts;

// Of the algorithms with the bits of the first one that runs, the fastest; with none, the first.
// The parts behind those of the algorithms are of a product of zeros, in which all are alike,
// whatever they do with others: then the first, too.
size_t FastestAlike(const std::vector<float>& milliseconds, const std::vector<uint64_t>& parts) {
  const auto runs = [](float time) { return std::isfinite(time); };
  const auto first = static_cast<size_t>(
      std::find_if(milliseconds.begin(), milliseconds.end(), runs) - milliseconds.begin());
  if (first == milliseconds.size()) return 0;
  const auto bits = [&](size_t i) { return parts.begin() + static_cast<ptrdiff_t>(i * kParts); };
  const auto of_zeros = bits(milliseconds.size());
  if (std::equal(of_zeros, of_zeros + kFingerprintParts, bits(first))) return first;
  size_t chosen = first;
  for (size_t i = first + 1; i < milliseconds.size(); ++i) {
    const bool alike = std::equal(bits(i), bits(i) + kParts, bits(first));
    if (alike && milliseconds[i] < milliseconds[chosen] * kClearlyFaster) chosen = i;
  }
  return chosen;
}

}  // namespace

Status Blas::Tune(Plan* plan, const MatrixOperands& operands, cudaStream_t stream) noexcept {
  plan->measured = true;
  const size_t count = plan->candidates.size();
  if (count <= 1) return {};
  // What is added to may not be added to several times.
  MatrixOperands scratch = operands;
  Scratch result(device_), parts(device_);
  if (plan->product.sum) {
    if (!result.Allocate(plan->result_bytes()).ok()) return {};  // the first proposal, then
    scratch.d = result.data();
  }
  std::vector<uint64_t> host_parts((count + 1) * kParts);  // the last of a product of zeros
  const size_t parts_bytes = host_parts.size() * sizeof(uint64_t);
  ENGINE_RETURN_IF_ERROR(parts.Allocate(parts_bytes));
  CUDA_OPS_RETURN_IF_ERROR(cudaMemsetAsync(parts.data(), 0, parts_bytes, stream),
                           "measuring a matrix product");

  const auto parts_of = [&](size_t i) { return static_cast<uint64_t*>(parts.data()) + i * kParts; };
  if (!plan->product.sum) {
    CUDA_OPS_RETURN_IF_ERROR(cudaMemsetAsync(scratch.d, 0, plan->result_bytes(), stream),
                             "measuring a matrix product");
  }
  CUDA_OPS_RETURN_IF_ERROR(LaunchFingerprint(operands.d, static_cast<int64_t>(plan->result_bytes()),
                                             parts_of(count), stream),
                           "measuring a matrix product");

  // An algorithm that does not run after all takes for ever.
  std::vector<float> milliseconds(count, std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < count; ++i) {
    if (!Rehearse(*plan, plan->candidates[i], operands, scratch, parts_of(i), stream).ok()) {
      continue;
    }
    const Status status = Measure(*plan, plan->candidates[i], scratch, stream, &milliseconds[i]);
    if (!status.ok()) milliseconds[i] = std::numeric_limits<float>::infinity();
  }
  TimedEvent end;
  ENGINE_RETURN_IF_ERROR(end.Record(stream));
  ENGINE_RETURN_IF_ERROR(end.Wait());
  CUDA_OPS_RETURN_IF_ERROR(
      cudaMemcpy(host_parts.data(), parts.data(), parts_bytes, cudaMemcpyDeviceToHost),
      "measuring a matrix product");
  plan->chosen = FastestAlike(milliseconds, host_parts);
  return {};
}

// The result once, and what its bits are. The first run of an algorithm is not one to measure.
Status Blas::Rehearse(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                      const MatrixOperands& operands, const MatrixOperands& scratch,
                      uint64_t* parts, cudaStream_t stream) noexcept {
  const size_t size_bytes = plan.result_bytes();
  if (plan.product.sum) {
    CUDA_OPS_RETURN_IF_ERROR(
        cudaMemcpyAsync(scratch.d, operands.d, size_bytes, cudaMemcpyDeviceToDevice, stream),
        "measuring a matrix product");
  }
  ENGINE_RETURN_IF_ERROR(Run(plan, algorithm, scratch, stream));
  CUDA_OPS_RETURN_IF_ERROR(
      LaunchFingerprint(scratch.d, static_cast<int64_t>(size_bytes), parts, stream),
      "measuring a matrix product");
  if (plan.product.epilogue != Epilogue::kGeluAuxBias) return {};
  return ToStatus(LaunchFingerprint(scratch.aux, static_cast<int64_t>(size_bytes),
                                    parts + kFingerprintParts, stream),
                  "measuring a matrix product");
}

Status Blas::Measure(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                     const MatrixOperands& operands, cudaStream_t stream,
                     float* milliseconds) noexcept {
  TimedEvent begin, end;
  ENGINE_RETURN_IF_ERROR(begin.Record(stream));
  for (int i = 0; i < kRepetitions; ++i) {
    ENGINE_RETURN_IF_ERROR(Run(plan, algorithm, operands, stream));
  }
  ENGINE_RETURN_IF_ERROR(end.Record(stream));
  ENGINE_RETURN_IF_ERROR(end.Wait());
  return end.Since(begin, milliseconds);
}

}  // namespace engine::cuda_ops
