#include "core/models/model.h"

namespace engine {

Result<ValueId> BuildMlp(GraphBuilder& builder, const config::Mlp& mlp, ValueId input,
                         int64_t classes) {
  ValueId x = input;
  if (builder.spec(x).shape.ndim > 2) {
    ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("", "flatten", {x}));
  }
  for (int32_t units : mlp.hidden()) {
    ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("", "linear", {x}, {Int("units", units)}));
    ENGINE_ASSIGN_OR_RETURN(x, builder.Apply("", mlp.activation(), {x}));
  }
  return builder.Apply("", "linear", {x}, {Int("units", classes)});
}

}  // namespace engine
