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
  constexpr const char* kWhat = "describing a convolution to cuDNN";
  const auto tensor = [&](cudnnTensorDescriptor_t* descriptor, int channels, int height,
                          int width) -> Status {
    CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, api.cudnnCreateTensorDescriptor(descriptor), kWhat);
    return cudnn_.ToStatus(
        api.cudnnSetTensor4dDescriptor(*descriptor, CUDNN_TENSOR_NHWC, shape_.type, shape_.samples,
                                       channels, height, width),
        kWhat);
  };
  ENGINE_RETURN_IF_ERROR(tensor(&x_, shape_.channels, shape_.height, shape_.width));
  ENGINE_RETURN_IF_ERROR(
      tensor(&y_, shape_.output_channels, shape_.output_height, shape_.output_width));
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, api.cudnnCreateFilterDescriptor(&filters_), kWhat);
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(
      cudnn_,
      api.cudnnSetFilter4dDescriptor(filters_, shape_.type, CUDNN_TENSOR_NHWC,
                                     shape_.output_channels, shape_.channels, shape_.kernel,
                                     shape_.kernel),
      kWhat);
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, api.cudnnCreateConvolutionDescriptor(&convolution_),
                                 kWhat);
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(
      cudnn_,
      api.cudnnSetConvolution2dDescriptor(convolution_, shape_.padding, shape_.padding,
                                          shape_.stride, shape_.stride, 1, 1,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
      kWhat);
  return cudnn_.ToStatus(api.cudnnSetConvolutionMathType(convolution_, shape_.math), kWhat);
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

Status CudnnConvolution::Forward(const void* x, const void* filters, void* y, void* workspace,
                                 cudaStream_t stream) const noexcept {
  ENGINE_RETURN_IF_ERROR(cudnn_.Use(stream));
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, UseMath(forward_.math), "convolution");
  return cudnn_.ToStatus(
      cudnn_.functions().cudnnConvolutionForward(cudnn_.handle(), &kOne, x_, x, filters_, filters,
                                                 convolution_, forward_.algorithm, workspace,
                                                 forward_.workspace_bytes, &kZero, y_, y),
      "convolution");
}

Status CudnnConvolution::BackwardData(const void* filters, const void* dy, void* dx, bool sum,
                                      void* workspace, cudaStream_t stream) const noexcept {
  ENGINE_RETURN_IF_ERROR(cudnn_.Use(stream));
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, UseMath(backward_data_.math),
                                 "gradient of the input of a convolution");
  return cudnn_.ToStatus(
      cudnn_.functions().cudnnConvolutionBackwardData(
          cudnn_.handle(), &kOne, filters_, filters, y_, dy, convolution_, backward_data_.algorithm,
          workspace, backward_data_.workspace_bytes, sum ? &kOne : &kZero, x_, dx),
      "gradient of the input of a convolution");
}

Status CudnnConvolution::BackwardFilter(const void* x, const void* dy, void* dfilters,
                                        void* workspace, cudaStream_t stream) const noexcept {
  ENGINE_RETURN_IF_ERROR(cudnn_.Use(stream));
  CUDA_OPS_RETURN_IF_CUDNN_ERROR(cudnn_, UseMath(backward_filter_.math),
                                 "gradient of the weight of a convolution");
  return cudnn_.ToStatus(
      cudnn_.functions().cudnnConvolutionBackwardFilter(
          cudnn_.handle(), &kOne, x_, x, y_, dy, convolution_, backward_filter_.algorithm,
          workspace, backward_filter_.workspace_bytes, &kZero, filters_, dfilters),
      "gradient of the weight of a convolution");
}

}  // namespace engine::cuda_ops
