// Source: the backend API, https://docs.nvidia.com/deeplearning/cudnn/backend/latest/.
#include "cudnn_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace engine::cuda_ops {
namespace {

// One of the descriptors that the backend is made of. The first error of its calls stays.
class Descriptor {
 public:
  Descriptor(const CudnnFunctions& api, cudnnBackendDescriptorType_t kind)
      : api_(api), status_(api.cudnnBackendCreateDescriptor(kind, &descriptor_)) {}
  Descriptor(Descriptor&& other) noexcept
      : api_(other.api_), descriptor_(other.Release()), status_(other.status_) {}
  ~Descriptor() {
    if (descriptor_ != nullptr) api_.cudnnBackendDestroyDescriptor(descriptor_);
  }

  Descriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const void* values, int64_t count = 1) {
    if (ok()) status_ = api_.cudnnBackendSetAttribute(descriptor_, name, type, count, values);
    return *this;
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value.descriptor_);
  }
  Descriptor& Finalize() {
    if (ok()) status_ = api_.cudnnBackendFinalize(descriptor_);
    return *this;
  }
  // How many values there are and are written, of at most `most`.
  int64_t Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, void* values,
              int64_t most = 1) const {
    int64_t count = 0;
    const bool got = ok() && api_.cudnnBackendGetAttribute(descriptor_, name, type, most, &count,
                                                           values) == CUDNN_STATUS_SUCCESS;
    return got ? std::min(count, most) : 0;
  }

  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t status() const { return status_; }
  cudnnBackendDescriptor_t get() const { return descriptor_; }
  cudnnBackendDescriptor_t Release() noexcept { return std::exchange(descriptor_, nullptr); }

 private:
  const CudnnFunctions& api_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  cudnnStatus_t status_;
};

constexpr int64_t IdOf(size_t tensor) {
  return static_cast<int64_t>(tensor) + 1;
}

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT, kBoolean = CUDNN_DATA_BOOLEAN;
constexpr float kOne = 1;

// What the backend calls the parts of an operation: what it does (a descriptor of its own, but for
// transpositions), and its tensors.
struct OperationNames {
  cudnnBackendDescriptorType_t kind, operation;
  cudnnBackendAttributeName_t arithmetic, mode, of_kind, x, b, y, alpha, beta;
};
constexpr auto kNoKind = cudnnBackendDescriptorType_t{};
constexpr auto kNone = cudnnBackendAttributeName_t{};
constexpr OperationNames kNames[] = {  // by GraphKind
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
     CUDNN_ATTR_MATMUL_COMP_TYPE, kNone, CUDNN_ATTR_OPERATION_MATMUL_DESC,
     CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     CUDNN_ATTR_OPERATION_MATMUL_CDESC},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
     CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_ATTR_POINTWISE_MODE,
     CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
     CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kNone,
     CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
    {kNoKind, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, kNone, kNone, kNone,
     CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kNone, CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
     CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
     CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
     CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};

Descriptor Describe(const CudnnFunctions& api, const GraphTensor& tensor, int64_t id) {
  const bool is_virtual = tensor.storage == GraphStorage::kVirtual,
             is_scalar = tensor.storage == GraphStorage::kScalar;
  constexpr int64_t kAlignment = 16;
  Descriptor described(api, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  described.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id)
      .Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &tensor.type)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &kAlignment)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, tensor.extents.data(), 4)
      .Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, tensor.strides.data(), 4)
      .Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual)
      .Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &is_scalar)
      .Finalize();
  return described;
}

void DescribeConvolution(const GraphOperation& of, Descriptor* kind) {
  constexpr cudnnConvolutionMode_t kMode = CUDNN_CROSS_CORRELATION;
  constexpr int64_t kPlane = 2;
  const auto& [strides, paddings, dilations] = of.window;
  kind->Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &kMode)
      .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, &kPlane)
      .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dilations.data(), kPlane)
      .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, strides.data(), kPlane)
      .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, paddings.data(), kPlane)
      .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, paddings.data(), kPlane);
}

Descriptor Describe(const CudnnFunctions& api, const GraphOperation& of,
                    const std::vector<Descriptor>& tensors) {
  const OperationNames& names = kNames[static_cast<size_t>(of.kind)];
  const auto tensor = [&](int id) -> const Descriptor& { return tensors[static_cast<size_t>(id)]; };
  Descriptor operation(api, names.operation);
  operation.Set(names.x, tensor(of.x)).Set(names.y, tensor(of.y));
  if (of.b >= 0) operation.Set(names.b, tensor(of.b));
  if (of.t >= 0) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor(of.t));
  if (of.kind != GraphKind::kTranspose) {
    const bool compares = of.kind == GraphKind::kPointwise && of.mode == CUDNN_POINTWISE_CMP_GE;
    Descriptor kind(api, names.kind);
    kind.Set(names.arithmetic, CUDNN_TYPE_DATA_TYPE, compares ? &kBoolean : &kFloat);
    if (of.kind == GraphKind::kPointwise) kind.Set(names.mode, CUDNN_TYPE_POINTWISE_MODE, &of.mode);
    if (of.kind == GraphKind::kReduction) {
      kind.Set(names.mode, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &of.mode);
    }
    if (of.axis >= 0) kind.Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &of.axis);
    if (of.kind >= GraphKind::kConvolution) {
      DescribeConvolution(of, &kind);
      operation.Set(names.alpha, CUDNN_TYPE_FLOAT, &kOne)
          .Set(names.beta, CUDNN_TYPE_FLOAT, &of.beta);
    }
    kind.Finalize();
    operation.Set(names.of_kind, kind);
  }
  operation.Finalize();
  return operation;
}

Descriptor Describe(const CudnnFunctions& api, const CudnnGraph& graph, cudnnHandle_t handle) {
  std::vector<Descriptor> tensors, operations;
  for (const GraphTensor& tensor : graph.tensors()) {
    tensors.push_back(Describe(api, tensor, IdOf(tensors.size())));
  }
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const GraphOperation& operation : graph.operations()) {
    operations.push_back(Describe(api, operation, tensors));
    raw.push_back(operations.back().get());
  }
  Descriptor described(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  described.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.data(),
                static_cast<int64_t>(raw.size()));
  if (handle != nullptr) {
    described.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
  }
  described.Finalize();
  return described;
}

// Whether the engine of a configuration is one that `limits` allow. Get fills the descriptor `engine`,
// which has to exist before.
bool IsAllowed(const CudnnFunctions& api, const Descriptor& of, const EngineLimits& limits) {
  const Descriptor engine(api, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  if (of.Get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw) < 1) return false;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const int64_t count = engine.Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   notes, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  return std::none_of(notes, notes + count, [&](cudnnBackendNumericalNote_t note) {
    return note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
           (!limits.tensor_cores && (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                                     note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
  });
}

// Configurations of the engines that cuDNN proposes, the best first. `device`: null for that of the
// operations' handle.
std::vector<Descriptor> Proposals(const CudnnFunctions& api, const Descriptor& operations,
                                  const Descriptor* device, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations)
      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  if (device != nullptr) heuristics.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device);
  heuristics.Finalize();
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw(20);
  for (cudnnBackendDescriptor_t& config : raw) {
    config = configs.emplace_back(api, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get();
  }
  const int64_t count = heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       raw.data(), static_cast<int64_t>(raw.size()));
  while (static_cast<int64_t>(configs.size()) > count) configs.pop_back();
  return configs;
}

}  // namespace

Status CudnnPlan::Create(Cudnn* cudnn, const CudnnGraph& graph, const EngineLimits& limits,
                         const char* device, std::unique_ptr<CudnnPlan>* out) {
  const CudnnFunctions& api = cudnn->functions();
  const auto error = [&](const char* what) {
    char words[256] = {};
    api.cudnnGetLastErrorString(words, sizeof words);
    return Status::Error(StatusCode::kUnsupported, "cuDNN %s (%s)", what, words);
  };
  const cudnnHandle_t handle = device == nullptr ? cudnn->handle() : nullptr;
  Descriptor properties(api, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  const Descriptor* const described = device == nullptr ? nullptr : &properties;
  if (device != nullptr) {
    properties.Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, device,
                   static_cast<int64_t>(strlen(device) + 1));
    if (!properties.Finalize().ok()) return error("knows no such device");
  }
  const Descriptor operations = Describe(api, graph, handle);
  if (!operations.ok()) return error("refuses the graph");
  std::unique_ptr<CudnnPlan> own(new CudnnPlan(cudnn, graph));
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& config : Proposals(api, operations, described, mode)) {
      Descriptor plan(api, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      if (described != nullptr) plan.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties);
      if (handle != nullptr) plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
      if (IsAllowed(api, config, limits) &&
          plan.Finalize().Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                              &own->workspace_bytes_) > 0 &&
          own->workspace_bytes_ <= limits.workspace_bytes) {
        own->plan_ = plan.Release();
        *out = std::move(own);
        return {};
      }
    }
  }
  return error("has no engine for the graph");
}

CudnnPlan::~CudnnPlan() {
  if (plan_ != nullptr) cudnn_.functions().cudnnBackendDestroyDescriptor(plan_);
}

Status CudnnPlan::Run(const GraphMemory& memory, void* workspace,
                      cudaStream_t stream) const noexcept {
  // On the stack: the step path allocates nothing. Virtual tensors are in no memory and have no id.
  std::array<int64_t, kMaxGraphTensors> ids;
  std::array<const void*, kMaxGraphTensors> data;
  size_t count = 0;
  for (size_t i = 0; i < graph_.tensors().size(); ++i) {
    const GraphTensor& tensor = graph_.tensors()[i];
    if (tensor.storage == GraphStorage::kVirtual) continue;
    ids[count] = IdOf(i);
    data[count++] = tensor.storage == GraphStorage::kScalar ? &tensor.value : memory[i];
  }
  const auto size = static_cast<int64_t>(count);
  Descriptor pack(cudnn_.functions(), CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), size)
      .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.data(), size)
      .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace);
  ENGINE_RETURN_IF_ERROR(cudnn_.ToStatus(pack.Finalize().status(), "arguments of a plan"));
  ENGINE_RETURN_IF_ERROR(cudnn_.Use(stream));
  return cudnn_.ToStatus(cudnn_.functions().cudnnBackendExecute(cudnn_.handle(), plan_, pack.get()),
                         "running a plan");
}

}  // namespace engine::cuda_ops
