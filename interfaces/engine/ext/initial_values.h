// What the parameters of a model begin with, where that is not for their initializers to say: weights
// of a file, and constants.
#pragma once

#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/status.h"

namespace engine {

// Query<InitialValues> of a Model gives one or null. It lives as long as the model.
ENGINE_INTERFACE(InitialValues, Interface, "engine.initial_values.draft/1", Has, Read);
class InitialValuesBase : public Implements<InitialValues> {
 public:
  // After Build, once for every parameter of its graph, also those that ops have made: 1 if the model
  // has values of its own for `parameter`; 0: its initializer counts. 1 for every Initializer::kConstant.
  // [setup]
  virtual uint32_t Has(std::string_view parameter) const noexcept = 0;

  // Writes all elements of a parameter that Has is 1 for, in the order of its shape; the same on every
  // rank. kBadData or kMissingInput with the file and the place in it. [setup]
  virtual Status Read(std::string_view parameter, std::span<float> values) const noexcept = 0;

 protected:
  ~InitialValuesBase() = default;
};

}  // namespace engine
