// The ops of convolution nets as plain loops in double precision. Tensors are channels-last.
#pragma once

#include "tests/conformance/ops/reference_ops.h"

namespace engine::test {

struct ReferenceWindow {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

ReferenceOp ReferenceConv2d(const ReferenceWindow& window);
ReferenceOp ReferenceMaxPool(const ReferenceWindow& window);
ReferenceOp ReferenceAvgPool(const ReferenceWindow& window);
ReferenceOp ReferenceGlobalAvgPool();
ReferenceOp ReferenceToChannelsLast();

}  // namespace engine::test
