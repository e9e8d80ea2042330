// The tensors of a file of weights, whoever wrote it: safetensors (of this engine, PyTorch or
// HuggingFace) or the initialisers of an ONNX model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::weights {

struct StoredTensor {
  std::string name;
  Shape shape;
  int32_t element = 0;         // of onnx::TensorProto::DataType; 0: of integers, nobody's weights
  const void* data = nullptr;  // perhaps not aligned
};

// Constant after Open. [any-thread]
class WeightFile {
 public:
  // The format is told by the name: an ONNX model ends in ".onnx". kMissingInput; kBadData with what
  // is wrong, for an ONNX model with the position at which it cannot be read on.
  static Result<std::unique_ptr<WeightFile>> Open(const std::string& path);
  virtual ~WeightFile() = default;

  // In the order of the file. What a checkpoint has beside parameters (states) is not among them.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Whether parameters have the layout that they have in this engine: it is a checkpoint. In other
  // files it is PyTorch's (app/weights/torch_layout.h).
  bool is_checkpoint() const { return is_checkpoint_; }

 protected:
  std::vector<StoredTensor> tensors_;
  bool is_checkpoint_ = false;
};

// The values of `tensor`, which are no integers, rounded to float32 where it has more digits.
std::vector<float> ReadFloats(const StoredTensor& tensor);

}  // namespace engine::weights
