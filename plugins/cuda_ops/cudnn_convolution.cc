#include "cudnn_convolution.h"

#include <algorithm>
#include <new>

namespace engine::cuda_ops {
namespace {

constexpr float kOne = 1, kZero = 0;

Status NoAlgorithm(const char* pass, const ConvolutionShape& shape, size_t limit) noexcept {
  return Status::Error(StatusCode::kDevice,
                       "cuDNN has no deterministic algorithm for the %s of a convolution of %d "
                       "samples of %d x %d x %d with a kernel of %d and %d channels in %zu bytes "
                       "of scratch",
                       pass, shape.samples, shape.height, shape.width, shape.channels, shape.kernel,
                       shape.output_channels, limit);
}

}  // namespace

Status CudnnConvolution::Create(Cudnn* cudnn, const ConvolutionShape& shape, size_t workspace_limit,
                                std::unique_ptr<CudnnConvolution>* out) noexcept {
  std::unique_ptr<CudnnConvolution> convolution(new (std::nothrow) CudnnConvolution(cudnn, shape));
  if (convolution == nullptr) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory for a plan of a convolution");
  }
  ENGINE_RETURN_IF_ERROR(convolution->Describe());
  ENGINE_RETURN_IF_ERROR(convolution->Choose(workspace_limit));
  *out = std::move(convolution);
  return {};
}

CudnnConvolution::~CudnnConvolution() {
  const CudnnFunctions& api = cudnn_.functions();
  if (convolution_ != nullptr) api.cudnnDestroyConvolutionDescriptor(convolution_);
  if (filters_ != nullptr) api.cudnnDestroyFilterDescriptor(filters_);
  if (y_ != nullptr) api.cudnnDestroyTensorDescriptor(y_);
  if (x_ != nullptr) api.cudnnDestroyTensorDescriptor(x_);
}

size_t CudnnConvolution::workspace_bytes() const noexcept {
  return std::max(
      {forward_.workspace_bytes, backward_data_.workspace_bytes, backward_filter_.workspace_bytes});
}

Status CudnnConvolution::Describe() noexcept {
  const CudnnFunctions& api = cudnn_.functions();
  const ConvolutionShape& of = shape_;
  // In this order. What is made of a descriptor that could not be made is an error too.
  const cudnnStatus_t steps[] = {
      api.cudnnCreateTensorDescriptor(&x_),
      api.cudnnSetTensor4dDescriptor(x_, CUDNN_TENSOR_NHWC, of.type, of.samples, of.channels,
                                     of.height, of.width),
      api.cudnnCreateTensorDescriptor(&y_),
      api.cudnnSetTensor4dDescriptor(y_, CUDNN_TENSOR_NHWC, of.type, of.samples, of.output_channels,
                                     of.output_height, of.output_width),
      api.cudnnCreateFilterDescriptor(&filters_),
      api.cudnnSetFilter4dDescriptor(filters_, of.type, CUDNN_TENSOR_NHWC, of.output_channels,
                                     of.channels, of.kernel, of.kernel),
      api.cudnnCreateConvolutionDescriptor(&convolution_),
      api.cudnnSetConvolution2dDescriptor(convolution_, of.padding, of.padding, of.stride,
                                          of.stride, 1, 1, CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT),
      api.cudnnSetConvolutionMathType(convolution_, of.math)};
  for (const cudnnStatus_t status : steps) {
    CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, status, "describing a convolution to cuDNN");
  }
  return {};
}

// Never another than that of single-precision sums of products where that is asked for.
cudnnStatus_t CudnnConvolution::UseMath(cudnnMathType_t math) const noexcept {
  return cudnn_.functions().cudnnSetConvolutionMathType(
      convolution_, shape_.math == CUDNN_FMA_MATH ? shape_.math : math);
}

// A proposal is one for its kind of arithmetic, and cuDNN may refuse it for another, or for this
// shape after all. The functions for the three passes have the same parameters.
template <typename Proposal, typename List, typename SizeOf, typename A, typename B, typename C,
          typename Algorithm>
Status CudnnConvolution::ChooseFirst(const char* pass, size_t limit, List list, SizeOf size_of, A a,
                                     B b, C c, Choice<Algorithm>* choice) const noexcept {
  constexpr const char* kWhat = "choosing an algorithm of cuDNN";
  constexpr int kMost = 8;
  Proposal proposals[kMost];
  int count = 0;
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, UseMath(shape_.math), kWhat);
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(
      cudnn_, list(cudnn_.handle(), a, b, convolution_, c, kMost, &count, proposals), kWhat);
  for (int i = 0; i < count; ++i) {
    const Proposal& proposal = proposals[i];
    size_t size = 0;
    if (proposal.status == CUDNN_STATUS_SUCCESS && proposal.determinism == CUDNN_DETERMINISTIC &&
        UseMath(proposal.mathType) == CUDNN_STATUS_SUCCESS &&
        size_of(cudnn_.handle(), a, b, convolution_, c, proposal.algo, &size) ==
            CUDNN_STATUS_SUCCESS &&
        size <= limit) {
      *choice = {proposal.algo, proposal.mathType, size};
      return {};
    }
  }
  return NoAlgorithm(pass, shape_, limit);
}

Status CudnnConvolution::Choose(size_t workspace_limit) noexcept {
  const CudnnFunctions& api = cudnn_.functions();
  ENGINE_RETURN_IF_ERROR(ChooseFirst<cudnnConvolutionFwdAlgoPerf_t>(
      "forward pass", workspace_limit, api.cudnnGetConvolutionForwardAlgorithm_v7,
      api.cudnnGetConvolutionForwardWorkspaceSize, x_, filters_, y_, &forward_));
  ENGINE_RETURN_IF_ERROR(ChooseFirst<cudnnConvolutionBwdDataAlgoPerf_t>(
      "gradient of the input", workspace_limit, api.cudnnGetConvolutionBackwardDataAlgorithm_v7,
      api.cudnnGetConvolutionBackwardDataWorkspaceSize, filters_, y_, x_, &backward_data_));
  return ChooseFirst<cudnnConvolutionBwdFilterAlgoPerf_t>(
      "gradient of the weight", workspace_limit, api.cudnnGetConvolutionBackwardFilterAlgorithm_v7,
      api.cudnnGetConvolutionBackwardFilterWorkspaceSize, x_, y_, filters_, &backward_filter_);
}

template <typename Function, typename Algorithm, typename A, typename B, typename C>
Status CudnnConvolution::Run(const char* pass, Function function, const Choice<Algorithm>& choice,
                             A a, const void* a_data, B b, const void* b_data, C c, void* c_data,
                             bool sum, void* workspace, cudaStream_t stream) const noexcept {
  ENGINE_RETURN_IF_ERROR(cudnn_.Use(stream));
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, UseMath(choice.math), pass);
  return cudnn_.ToStatus(
      function(cudnn_.handle(), &kOne, a, a_data, b, b_data, convolution_, choice.algorithm,
               workspace, choice.workspace_bytes, sum ? &kOne : &kZero, c, c_data),
      pass);
}

Status CudnnConvolution::Forward(const void* x, const void* filters, void* y, void* workspace,
                                 cudaStream_t stream) const noexcept {
  return Run("convolution", cudnn_.functions().cudnnConvolutionForward, forward_, x_, x, filters_,
             filters, y_, y, false, workspace, stream);
}

Status CudnnConvolution::BackwardData(const void* filters, const void* dy, void* dx, bool sum,
                                      void* workspace, cudaStream_t stream) const noexcept {
  return Run("gradient of the input of a convolution",
             cudnn_.functions().cudnnConvolutionBackwardData, backward_data_, filters_, filters, y_,
             dy, x_, dx, sum, workspace, stream);
}

Status CudnnConvolution::BackwardFilter(const void* x, const void* dy, void* dfilters,
                                        void* workspace, cudaStream_t stream) const noexcept {
  return Run("gradient of the weight of a convolution",
             cudnn_.functions().cudnnConvolutionBackwardFilter, backward_filter_, x_, x, y_, dy,
             filters_, dfilters, false, workspace, stream);
}

}  // namespace engine::cuda_ops
