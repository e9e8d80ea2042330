// As op_attributes.h, of the ops on arrays: elementwise functions with constants, products,
// reductions, and ops that move elements.
#pragma once

#include <array>

#include "engine/options.h"
#include "kit/op_attributes.h"
#include "kit/options.h"

namespace engine::kit {

constexpr double kLargestFloat = 3.4e38;

// Axes count from 0, which is that of samples, or from -1, the last one, backwards.
constexpr OptionSpec AxisOption(OptionDefault value, OptionDoc doc) noexcept {
  return IntOption("axis", value, -6, 5, doc);
}
constexpr OptionSpec ConstantOption(OptionName name, OptionDefault value, OptionDoc doc) noexcept {
  return FloatOption(name, value, -kLargestFloat, kLargestFloat, doc);
}

constexpr OptionSpec ShapeOption(OptionDefault value) noexcept {
  return IntsOption("shape", value, -1, kMaxExtent,
                    "extents of y behind that of samples; -1: what is left, or as in x");
}

constexpr OptionSpec kAxes =
    IntsOption("axes", "", -6, 5, "that are reduced; none: all but that of samples");
constexpr OptionSpec kKeep = BoolOption("keep", "false", "whether they stay, as extents of 1");

// Behind kOpAttributes in the descriptor of a library that has these ops.
constexpr std::array kArrayOpAttributes = {
    Attribute("scale", ConstantOption("factor", "1", "what x is multiplied by")),
    Attribute("scale", ConstantOption("offset", "0", "what is then added")),
    Attribute("leaky_relu",
              FloatOption("slope", "0.01", 0, kLargestFloat, "of x below 0, where y = slope x")),
    Attribute("elu", FloatOption("alpha", "1", 0, kLargestFloat,
                                 "of x below 0, where y = alpha (e^x - 1)")),
    Attribute("clip", ConstantOption("min", "-3.4e38", "lower bound of y")),
    Attribute("clip", ConstantOption("max", "3.4e38", "upper bound of y")),
    Attribute("pow", FloatOption("exponent", "", -64, 64, "of x, a constant")),
    Attribute("softmax", AxisOption("-1", "along which y sums to 1")),
    Attribute("log_softmax", AxisOption("-1", "along which e^y sums to 1")),
    Attribute("matmul", BoolOption("transpose_a", "false", "whether a is (..., K, M)")),
    Attribute("matmul", BoolOption("transpose_b", "false", "whether b is (..., N, K)")),
    Attribute("matmul", ConstantOption("scale", "1", "what the product is multiplied by")),
    Attribute("rms_norm", kEpsilon),
    Attribute("scaled_dot_product_attention",
              BoolOption("causal", "false", "whether query i sees keys 0 to i alone")),
    Attribute("scaled_dot_product_attention",
              FloatOption("scale", "0", 0, kLargestFloat,
                          "of the scores, before the mask; 0: 1 / sqrt(D)")),
    Attribute("rotary_embedding",
              BoolOption("interleaved", "false",
                         "whether columns 2i and 2i + 1 are a pair; else i and i + D / 2 are")),
    Attribute("reshape", ShapeOption("-1")),
    Attribute("expand", ShapeOption("")),
    Attribute("transpose",
              IntsOption("order", "", 0, 5,
                         "the axes of x in y, without that of samples; none: reversed")),
    Attribute("concat", AxisOption("-1", "along which inputs follow one another")),
    Attribute("slice", AxisOption("-1", "that is cut")),
    Attribute("slice", IntOption("begin", "0", -kMaxExtent, kMaxExtent,
                                 "first position; a negative one counts from the end")),
    Attribute("slice", IntOption("end", "1073741824", -kMaxExtent - 1, kMaxExtent,
                                 "where to stop; negative: counts from the end")),
    Attribute("slice", IntOption("step", "1", -kMaxExtent, kMaxExtent,
                                 "positions from one to the next; not 0")),
    Attribute("pad", IntsOption("before", "", 0, kMaxExtent,
                                "elements to add before each axis but that of samples; none: 0")),
    Attribute("pad", IntsOption("after", "", 0, kMaxExtent, "elements to add behind each")),
    Attribute("pad", ConstantOption("value", "0", "of the elements of mode constant")),
    Attribute("pad", EnumOption("mode", "constant", "constant|reflect|edge",
                                "reflect: x mirrored at its first and last element; edge: those")),
    Attribute("gather", AxisOption("-1", "along which is picked")),
    Attribute("gather", IntsOption("indices", "0", -kMaxExtent, kMaxExtent,
                                   "positions in x, negative ones from the end")),
    Attribute("reduce_sum", kAxes),
    Attribute("reduce_sum", kKeep),
    Attribute("reduce_mean", kAxes),
    Attribute("reduce_mean", kKeep),
    Attribute("reduce_max", kAxes),
    Attribute("reduce_max", kKeep),
};

}  // namespace engine::kit
