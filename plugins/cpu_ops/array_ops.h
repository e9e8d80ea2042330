// What makes the functions of elements and the ops on arrays.
#pragma once

#include "cpu_op.h"

namespace engine::cpu_ops {

// functions.cc
extern const OpFactory kMakeAbs, kMakeClip, kMakeCos, kMakeElu, kMakeErf, kMakeExp, kMakeGelu,
    kMakeGeluErf, kMakeHardSigmoid, kMakeHardSwish, kMakeLeakyRelu, kMakeLog, kMakeMish, kMakePow,
    kMakeReciprocal, kMakeRelu, kMakeScale, kMakeSigmoid, kMakeSilu, kMakeSin, kMakeSoftplus,
    kMakeSqrt, kMakeTanh;
extern const OpFactory kMakeConstantPower, kMakeCube, kMakeInverseSqrt, kMakeSquare;  // of pow

// broadcast.cc
extern const OpFactory kMakeAccumulate, kMakeAdd, kMakeDivide, kMakeMaximum, kMakeMinimum,
    kMakeMultiply, kMakePower, kMakePrelu, kMakeSubtract, kMakeWhere;

// move.cc
extern const OpFactory kMakeConcat, kMakeExpand, kMakeGather, kMakePad, kMakeReshape, kMakeSlice,
    kMakeTranspose;

// A file each, but for the reductions.
extern const OpFactory kMakeLogSoftmax, kMakeMatmul, kMakeReduceMax, kMakeReduceMean,
    kMakeReduceSum, kMakeRmsNorm, kMakeRotaryEmbedding, kMakeSdpa, kMakeSoftmax;

}  // namespace engine::cpu_ops
