// Where samples come from: a dataset is a size and a way to make one sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

struct DatasetInfo {
  std::string name;                     // for messages: "mnist images.gz"
  int64_t size = 0;                     // samples
  Shape input_shape;                    // of one sample, without the batch dimension
  DType input_dtype = DType::kFloat32;  // kFloat32, or kInt32 for tokens
  Shape target_shape;                   // of one sample; a scalar class has ndim 0; always int32
  int64_t classes = 0;                  // targets are in [0, classes)
  // Of the content that was read, the same on every rank that read the same; empty when nothing is
  // read. Ranks compare it before they train.
  std::string digest;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const DatasetInfo& info() const = 0;
  // Writes sample `index` of `epoch` (dense, shapes of info()). A function of its arguments and the
  // seed the dataset was made with, and of nothing else. [any-thread]
  virtual Status Get(uint64_t epoch, int64_t index, void* input, int32_t* target) const = 0;
};

struct DatasetPair {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> eval;  // held out; never null, its size may be 0
};

}  // namespace engine
