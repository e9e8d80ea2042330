#include "app/weights/weight_file.h"

#include <list>
#include <span>
#include <utility>

#include "app/checkpoint/checkpoint.h"
#include "app/checkpoint/safetensors.h"
#include "onnx_kit/tensors.h"

namespace engine::weights {
namespace {

using onnx::TensorProto;

// By DType.
constexpr int32_t kElements[] = {TensorProto::FLOAT, 0, 0, TensorProto::BFLOAT16,
                                 TensorProto::FLOAT16};

class SafetensorsWeights final : public WeightFile {
 public:
  explicit SafetensorsWeights(std::unique_ptr<checkpoint::SafetensorsFile> file)
      : file_(std::move(file)) {
    is_checkpoint_ = checkpoint::IsCheckpoint(*file_);
    for (const checkpoint::NamedTensor& tensor : file_->tensors()) {
      if (is_checkpoint_ && !checkpoint::IsParameter(tensor.name)) continue;
      tensors_.push_back({tensor.name, tensor.view.shape,
                          kElements[static_cast<int>(tensor.view.dtype)], tensor.view.data});
    }
    for (const checkpoint::ForeignTensor& tensor : file_->foreign()) {
      tensors_.push_back({tensor.name, tensor.shape,
                          tensor.dtype == "F64" ? int32_t{TensorProto::DOUBLE} : 0, tensor.data});
    }
  }

 private:
  const std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

// The initialisers of a model.
class OnnxWeights final : public WeightFile {
 public:
  Status Read(const std::string& path) {
    ENGINE_ASSIGN_OR_RETURN(model_, onnx_kit::ReadModel(path));
    for (const TensorProto& tensor : model_.graph().initializer()) {
      if (tensor.dims_size() > kMaxDims) continue;  // as no parameter
      StoredTensor stored{.name = tensor.name()};
      for (const int64_t extent : tensor.dims()) stored.shape.dims[stored.shape.ndim++] = extent;
      if (onnx_kit::IsFloat(tensor.data_type())) {
        stored.element = tensor.data_type();
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
  ENGINE_CHECK(tensor.element != 0, "tensor '%s' has no floating-point elements",
               tensor.name.c_str());
  std::vector<float> values(static_cast<size_t>(tensor.shape.Count()));
  onnx_kit::Convert(tensor.element, tensor.data, std::span(values));
  return values;
}

}  // namespace engine::weights
