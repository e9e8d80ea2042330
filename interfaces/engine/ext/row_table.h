// Parameters of which a batch reads some rows only: what an op may say of itself (an embedding). Where
// servers keep the parameters those rows alone may travel.
#pragma once

#include <cstdint>
#include <string_view>

namespace engine {

constexpr std::string_view kRowTableId = "engine.row_table/1";

class RowTable {
 public:
  // Of the inputs of the op, a parameter of two dimensions. Each element of input 0, of kInt32, picks
  // one of its rows; Forward reads no others, and their gradient is zero. [any-thread]
  virtual int32_t table_input() const noexcept = 0;

 protected:
  ~RowTable() = default;
};

}  // namespace engine
