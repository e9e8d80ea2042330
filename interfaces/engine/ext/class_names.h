// What the classes of a dataset are called: checkpoints keep the names, so that whoever uses the
// trained model reads "cat" where the data is not at hand.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/abi/view.h"

namespace engine {

// Query<ClassNames> of a Dataset gives one or null, before and after Open. It lives as long as the
// dataset, and so do the names.
ENGINE_INTERFACE(ClassNames, Interface, "engine.class_names.draft/1", ClassName);
class ClassNamesBase : public Implements<ClassNames> {
 public:
  // After Open, of class `number`, less than SampleTensor::classes, of target `target`: all classes
  // of a target have names, or none has (empty); names are UTF-8 without control characters, the
  // same on every rank. [any-thread]
  virtual TextView ClassName(uint32_t target, int64_t number) const noexcept = 0;

 protected:
  ~ClassNamesBase() = default;
};

}  // namespace engine
