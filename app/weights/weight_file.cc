#include "app/weights/weight_file.h"

#include <cstring>
#include <list>
#include <utility>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/safetensors.h"
#include "kit/float16.h"
#include "onnx_kit/tensors.h"

namespace engine::weights {
namespace {

using onnx::TensorProto;

Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Element::kFloat32;
    case DType::kFloat16:
      return Element::kFloat16;
    case DType::kBFloat16:
      return Element::kBFloat16;
    default:
      return Element::kOther;
  }
}

class SafetensorsWeights final : public WeightFile {
 public:
  explicit SafetensorsWeights(std::unique_ptr<checkpoint::SafetensorsFile> file)
      : file_(std::move(file)) {
    is_checkpoint_ = checkpoint::IsCheckpoint(*file_);
    for (const checkpoint::NamedTensor& tensor : file_->tensors()) {
      if (is_checkpoint_ && !checkpoint::IsParameter(tensor.name)) continue;
      tensors_.push_back(
          {tensor.name, tensor.view.shape, ElementOf(tensor.view.dtype), tensor.view.data});
    }
    for (const checkpoint::ForeignTensor& tensor : file_->foreign()) {
      tensors_.push_back({tensor.name, tensor.shape,
                          tensor.dtype == "F64" ? Element::kFloat64 : Element::kOther,
                          tensor.data});
    }
  }

 private:
  const std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

Element ElementOfOnnx(int32_t type) {
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

// The initialisers of a model.
class OnnxWeights final : public WeightFile {
 public:
  Status Read(const std::string& path) {
    ENGINE_ASSIGN_OR_RETURN(model_, onnx_kit::ReadModel(path));
    for (const TensorProto& tensor : model_.graph().initializer()) {
      if (tensor.dims_size() > kMaxDims) continue;  // as no parameter
      StoredTensor stored{tensor.name(), {}, ElementOfOnnx(tensor.data_type())};
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

// `convert` of each element, which is of type From.
template <typename From, typename Convert>
std::vector<float> Converted(const StoredTensor& tensor, Convert convert) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.Count()));
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  for (float& value : values) {
    From element;
    std::memcpy(&element, bytes, sizeof element);
    bytes += sizeof element;
    value = convert(element);
  }
  return values;
}

}  // namespace

Result<std::unique_ptr<WeightFile>> WeightFile::Open(const std::string& path) {
  if (path.ends_with(".onnx")) {
    auto weights = std::make_unique<OnnxWeights>();
    ENGINE_RETURN_IF_ERROR(weights->Read(path));
    return std::unique_ptr<WeightFile>(std::move(weights));
  }
  ENGINE_ASSIGN_OR_RETURN(
      auto file, checkpoint::SafetensorsFile::Open(path, checkpoint::ForeignTypes::kAccept));
  return std::unique_ptr<WeightFile>(std::make_unique<SafetensorsWeights>(std::move(file)));
}

std::vector<float> ReadFloats(const StoredTensor& tensor) {
  switch (tensor.element) {
    case Element::kFloat64:
      return Converted<double>(tensor, [](double x) { return static_cast<float>(x); });
    case Element::kFloat32:
      return Converted<float>(tensor, [](float x) { return x; });
    case Element::kFloat16:
      return Converted<uint16_t>(tensor, [](uint16_t x) { return kit::FromFloat16(x); });
    case Element::kBFloat16:
      return Converted<uint16_t>(tensor, [](uint16_t x) { return kit::FromBFloat16(x); });
    case Element::kOther:
      break;
  }
  ENGINE_CHECK(false, "tensor '%s' has no floating-point elements", tensor.name.c_str());
}

}  // namespace engine::weights
