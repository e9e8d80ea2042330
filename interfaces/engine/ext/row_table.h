// Parameters of which a batch reads some rows only: what an op may say of itself (an embedding).
// Where servers keep the parameters those rows alone may travel.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/abi/interface.h"

namespace engine {

// Query<RowTable> of an Op gives one or null. It lives as long as the op. It is used for a table
// that no other op reads and whose rows the samples themselves pick (input 0 is the input of the
// graph).
ENGINE_INTERFACE(RowTable, Interface, "engine.row_table.draft/1", table_input);
class RowTableBase : public Implements<RowTable> {
 public:
  // The index, at least 1, among the inputs of the op (data inputs, then parameters) of a parameter
  // of two dimensions. Each element of input 0, of kInt32, picks one of its rows; Forward reads no
  // others, and their gradient is zero. [any-thread]
  virtual int32_t table_input() const noexcept = 0;

 protected:
  ~RowTableBase() = default;
};

}  // namespace engine
