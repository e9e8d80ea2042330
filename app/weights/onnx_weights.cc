#include "app/weights/onnx_weights.h"

#include <cstdint>
#include <list>
#include <utility>

#include "engine/tensor.h"
#include "onnx_kit/tensors.h"

namespace engine::weights {
namespace {

using onnx::TensorProto;

Element ElementOf(int32_t type) {
  switch (type) {
    case TensorProto::FLOAT:
      return Element::kFloat32;
    case TensorProto::DOUBLE:
      return Element::kFloat64;
    case TensorProto::FLOAT16:
      return Element::kFloat16;
    case TensorProto::BFLOAT16:
      return Element::kBFloat16;
    default:
      return Element::kOther;
  }
}

class OnnxWeights final : public WeightFile {
 public:
  Status Read(const std::string& path) {
    ENGINE_ASSIGN_OR_RETURN(model_, onnx_kit::ReadModel(path));
    for (const TensorProto& tensor : model_.graph().initializer()) {
      if (tensor.dims_size() > kMaxDims) continue;  // as no parameter
      StoredTensor stored{tensor.name(), {}, ElementOf(tensor.data_type())};
      for (const int64_t extent : tensor.dims()) stored.shape.dims[stored.shape.ndim++] = extent;
      if (stored.element != Element::kOther) {
        auto elements = onnx_kit::ReadElements(tensor, path);
        if (!elements.ok()) return elements.status().WithContext("%s", path.c_str());
        stored.data = elements_.emplace_back(std::move(*elements)).bytes.data();
      }
      tensors_.push_back(std::move(stored));
    }
    return {};
  }

 private:
  onnx::ModelProto model_;
  std::list<onnx_kit::Elements> elements_;  // that tensors_ point to
};

}  // namespace

Result<std::unique_ptr<WeightFile>> OpenOnnxWeights(const std::string& path) {
  auto weights = std::make_unique<OnnxWeights>();
  ENGINE_RETURN_IF_ERROR(weights->Read(path));
  return std::unique_ptr<WeightFile>(std::move(weights));
}

}  // namespace engine::weights
