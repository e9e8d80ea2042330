// The functions of cuDNN 9 that convolutions use, on the host. Work is queued on the stream of the
// handle like a kernel's. What a device would not forgive (memory that is not its own, too little
// scratch) ends the process; what cuDNN refuses is refused.
#include <algorithm>
#include <cstring>
#include <new>

#include "tests/emulated_cuda/cudnn/algorithms.h"
#include "tests/emulated_cuda/cudnn/descriptors.h"
#include "tests/emulated_cuda/runtime.h"

using emulated_cuda::AlgorithmOf;
using emulated_cuda::AlgorithmsFor;
using emulated_cuda::ConvolutionAlgorithm;
using emulated_cuda::ConvolutionPass;
using emulated_cuda::ConvolutionProblem;
using emulated_cuda::ConvolutionTensors;
using emulated_cuda::ProblemOf;

#define EMULATED_CUDNN_ENTER()                                                                   \
  do {                                                                                           \
    if (const int code = emulated_cuda_fault(__func__)) return static_cast<cudnnStatus_t>(code); \
  } while (false)

namespace {

template <typename T>
cudnnStatus_t Create(T** out) {
  if (out == nullptr) return CUDNN_STATUS_BAD_PARAM;
  *out = new (std::nothrow) T;
  return *out != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}

bool IsType(cudnnDataType_t type) {
  return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16;
}

template <typename Performance>
cudnnStatus_t Propose(ConvolutionPass pass, const cudnnTensorStruct* x,
                      const cudnnFilterStruct* filters, const cudnnConvolutionStruct* convolution,
                      const cudnnTensorStruct* y, int requested, int* returned,
                      Performance* results) {
  const auto problem = ProblemOf(x, filters, convolution, y);
  if (!problem || requested < 1 || returned == nullptr || results == nullptr) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  ConvolutionAlgorithm algorithms[emulated_cuda::kMaxAlgorithms];
  const size_t count =
      std::min(AlgorithmsFor(pass, *problem, algorithms), static_cast<size_t>(requested));
  for (size_t i = 0; i < count; ++i) {
    results[i] = {};
    results[i].algo = static_cast<decltype(results[i].algo)>(algorithms[i].number);
    results[i].status = algorithms[i].status;
    results[i].time = -1;
    results[i].memory = algorithms[i].workspace_bytes;
    results[i].determinism = algorithms[i].determinism;
    results[i].mathType = convolution->math;
  }
  *returned = static_cast<int>(count);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t WorkspaceSize(ConvolutionPass pass, const cudnnTensorStruct* x,
                            const cudnnFilterStruct* filters,
                            const cudnnConvolutionStruct* convolution, const cudnnTensorStruct* y,
                            int algorithm, size_t* size) {
  const auto problem = ProblemOf(x, filters, convolution, y);
  if (!problem || size == nullptr) return CUDNN_STATUS_BAD_PARAM;
  const ConvolutionAlgorithm found = AlgorithmOf(pass, *problem, algorithm);
  *size = found.workspace_bytes;
  return found.status;
}

// What all passes are called with.
struct Call {
  cudnnHandle_t handle;
  const cudnnTensorStruct* x;
  const cudnnFilterStruct* filters;
  const cudnnConvolutionStruct* convolution;
  const cudnnTensorStruct* y;
  int algorithm;
  void* workspace;
  size_t workspace_bytes;
  ConvolutionTensors tensors;
};

void CheckMemory(const void* data, int64_t bytes, const char* what) {
  if (!emulated_cuda_is_device_range(data, static_cast<size_t>(bytes))) emulated_cuda_fail(what);
}

cudnnStatus_t Start(ConvolutionPass pass, const Call& call,
                    void (*run)(const ConvolutionProblem&, const ConvolutionTensors&)) {
  const auto problem = ProblemOf(call.x, call.filters, call.convolution, call.y);
  if (!problem || call.handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  const ConvolutionAlgorithm algorithm = AlgorithmOf(pass, *problem, call.algorithm);
  if (algorithm.status != CUDNN_STATUS_SUCCESS) return algorithm.status;
  if (call.workspace_bytes < algorithm.workspace_bytes) return CUDNN_STATUS_BAD_PARAM;
  const auto element = static_cast<int64_t>(problem->element_bytes());
  CheckMemory(call.tensors.x, problem->x_count() * element, "x of a convolution");
  CheckMemory(call.tensors.y, problem->y_count() * element, "y of a convolution");
  CheckMemory(call.tensors.filters, problem->filter_count() * element,
              "the filters of a convolution");
  const size_t scratch = algorithm.workspace_bytes;
  if (scratch > 0) {
    CheckMemory(call.workspace, static_cast<int64_t>(scratch), "the scratch of a convolution");
  }
  const cudaError_t error = emulated_cuda::Enqueue(
      call.handle->stream,
      [problem = *problem, tensors = call.tensors, workspace = call.workspace, scratch, run] {
        if (scratch > 0) std::memset(workspace, 0xff, scratch);
        run(problem, tensors);
        return cudaSuccess;
      });
  return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "another CUDNN_STATUS";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  EMULATED_CUDNN_ENTER();
  return Create(handle);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  EMULATED_CUDNN_ENTER();
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* out) {
  EMULATED_CUDNN_ENTER();
  return Create(out);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  if (tensor == nullptr || n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  if (format != CUDNN_TENSOR_NHWC || !IsType(type)) return CUDNN_STATUS_NOT_SUPPORTED;
  *tensor = {.type = type, .n = n, .c = c, .h = h, .w = w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  delete tensor;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* out) {
  EMULATED_CUDNN_ENTER();
  return Create(out);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filters, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  if (filters == nullptr || k < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  if (format != CUDNN_TENSOR_NHWC || !IsType(type)) return CUDNN_STATUS_NOT_SUPPORTED;
  *filters = {.type = type, .k = k, .c = c, .h = h, .w = w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filters) {
  delete filters;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* out) {
  EMULATED_CUDNN_ENTER();
  return Create(out);
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (convolution == nullptr || pad_h < 0 || pad_w < 0 || u < 1 || v < 1) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (dilation_h != 1 || dilation_w != 1 || mode != CUDNN_CROSS_CORRELATION ||
      compute != CUDNN_DATA_FLOAT) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  *convolution = {
      .padding_height = pad_h, .padding_width = pad_w, .stride_height = u, .stride_width = v};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution,
                                          cudnnMathType_t math) {
  if (convolution == nullptr) return CUDNN_STATUS_BAD_PARAM;
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  delete convolution;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t filters,
                                                     const cudnnConvolutionDescriptor_t convolution,
                                                     const cudnnTensorDescriptor_t y,
                                                     const int requested, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
  EMULATED_CUDNN_ENTER();
  return Propose(ConvolutionPass::kForward, x, filters, convolution, y, requested, returned,
                 results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t filters,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t* size) {
  return WorkspaceSize(ConvolutionPass::kForward, x, filters, convolution, y, algorithm, size);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x_descriptor, const void* x,
                                      const cudnnFilterDescriptor_t filter_descriptor,
                                      const void* filters,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      size_t workspace_bytes, const void* beta,
                                      const cudnnTensorDescriptor_t y_descriptor, void* y) {
  EMULATED_CUDNN_ENTER();
  return Start(ConvolutionPass::kForward,
               {handle,
                x_descriptor,
                filter_descriptor,
                convolution,
                y_descriptor,
                algorithm,
                workspace,
                workspace_bytes,
                {const_cast<void*>(x), const_cast<void*>(filters), y,
                 *static_cast<const float*>(alpha), *static_cast<const float*>(beta)}},
               emulated_cuda::ConvolveForward);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t filters, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t x,
    const int requested, int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results) {
  EMULATED_CUDNN_ENTER();
  return Propose(ConvolutionPass::kBackwardData, x, filters, convolution, y, requested, returned,
                 results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, const cudnnFilterDescriptor_t filters, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t x,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t* size) {
  return WorkspaceSize(ConvolutionPass::kBackwardData, x, filters, convolution, y, algorithm, size);
}

cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t filter_descriptor,
    const void* filters, const cudnnTensorDescriptor_t y_descriptor, const void* dy,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdDataAlgo_t algorithm,
    void* workspace, size_t workspace_bytes, const void* beta,
    const cudnnTensorDescriptor_t x_descriptor, void* dx) {
  EMULATED_CUDNN_ENTER();
  return Start(ConvolutionPass::kBackwardData,
               {handle,
                x_descriptor,
                filter_descriptor,
                convolution,
                y_descriptor,
                algorithm,
                workspace,
                workspace_bytes,
                {dx, const_cast<void*>(filters), const_cast<void*>(dy),
                 *static_cast<const float*>(alpha), *static_cast<const float*>(beta)}},
               emulated_cuda::ConvolveBackwardData);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t filters,
    const int requested, int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  EMULATED_CUDNN_ENTER();
  return Propose(ConvolutionPass::kBackwardFilter, x, filters, convolution, y, requested, returned,
                 results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t filters,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* size) {
  return WorkspaceSize(ConvolutionPass::kBackwardFilter, x, filters, convolution, y, algorithm,
                       size);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_descriptor,
    const void* x, const cudnnTensorDescriptor_t y_descriptor, const void* dy,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdFilterAlgo_t algorithm,
    void* workspace, size_t workspace_bytes, const void* beta,
    const cudnnFilterDescriptor_t filter_descriptor, void* dfilters) {
  EMULATED_CUDNN_ENTER();
  return Start(ConvolutionPass::kBackwardFilter,
               {handle,
                x_descriptor,
                filter_descriptor,
                convolution,
                y_descriptor,
                algorithm,
                workspace,
                workspace_bytes,
                {const_cast<void*>(x), dfilters, const_cast<void*>(dy),
                 *static_cast<const float*>(alpha), *static_cast<const float*>(beta)}},
               emulated_cuda::ConvolveBackwardFilter);
}

}  // extern "C"
