// Typed options: what a plugin (or one of its ops) can be told, published as constant data, and the
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "engine/abi/layout.h"
#include "engine/abi/view.h"
#include "engine/status.h"

namespace engine {

enum class OptionType : uint32_t {
  kBool = 0,    // "true" or "false"
  kInt = 1,     // 64 bits
  kFloat = 2,   // a finite double
  kString = 3,  // UTF-8; may be empty unless a range forbids it
  kEnum = 4,    // one word of `choices`
  kInts = 5,    // a list of int
  kLayers = 6,  // of models: a list of `layer` blocks
  kOp = 7,      // the name of an op of any chosen plugin
  kPlugin = 8,  // the name of another plugin, which may have a block of options of its own
};

constexpr const char* Name(OptionType type) noexcept {
  constexpr const char* kNames[] = {"bool", "int",    "float", "string", "enum",
                                    "ints", "layers", "op",    "plugin"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// A string inside a constant descriptor: no pointer, so the core can read it from the file without
// loading it. The last byte is NUL at least: a literal of kSize or more bytes does not compile.
template <size_t kSize>
struct FixedString {
  char text[kSize] = {};

  constexpr FixedString() noexcept = default;
  template <size_t kLength>
  constexpr FixedString(
      const char (&literal)[kLength]) noexcept {  // NOLINT(google-explicit-constructor)
    static_assert(kLength <= kSize, "text is too long for its field");
    for (size_t i = 0; i < kLength; ++i) text[i] = literal[i];
  }
  // Without the NULs; borrows this string.
  constexpr std::string_view view() const noexcept {
    size_t length = 0;
    while (length < kSize && text[length] != '\0') ++length;
    return {text, length};
  }
};

// One option, as designated initialisers:
//
//   {.name = "io_threads", .type = OptionType::kInt, .default_value = "2", .min = 1, .max = 64,
//    .doc = "..."}
//
// An empty `default_value` makes an option required, but for a string, which is then empty, and for
// ints, of which there are then none; a default of ints is "2,2". min < max makes a range
// (inclusive): of a number, of each of ints, of the bytes of a string, so that one without default
// and with min = 1 is required, of the number of layers, likewise; min = max = 0 makes none, and
// needs a layer. A default must be in the range. `choices`
// lists the words of an enum, separated by '|'; a configuration writes them in quotes, or without
// if all are in capitals; of a plugin it is the kind that it must be of, "communicator" or
// "scheduler". `scope` is empty for an option of the plugin, or the name of the op whose attribute
// this is. Every option should have one line of `doc`.
struct OptionSpec {
  FixedString<32> scope = {};
  FixedString<32> name = {};  // [a-z][a-z0-9_]*, once in a scope
  OptionType type = OptionType::kString;
  uint32_t reserved = 0;  // 0
  FixedString<64> default_value = {};
  double min = 0;
  double max = 0;
  FixedString<96> choices = {};
  FixedString<160> doc = {};
};
ENGINE_LAYOUT(OptionSpec, scope, name, type, reserved, default_value, min, max, choices, doc);

struct LayerSpec;

// One value. Of the fields after `type` the one of that type counts; text and lists are borrowed.
struct OptionValue {
  TextView name = {};
  OptionType type = OptionType::kString;
  int64_t integer = 0;                 // kInt, kBool (0 or 1)
  double number = 0;                   // kFloat
  TextView string = {};                // kString, kEnum, kOp, kPlugin
  Span<const int64_t> integers = {};   // kInts
  Array<const LayerSpec> layers = {};  // kLayers
};
ENGINE_LAYOUT(OptionValue, name, type, integer, number, string, integers, layers);

// One op of a model's graph with its parameters: ModelBuilder::Apply.
struct LayerSpec {
  uint64_t struct_size = sizeof(LayerSpec);
  TextView op = {};    // of any chosen op plugin
  TextView name = {};  // parameters are called "<name>.weight"; empty: op and number, "linear2"
  Array<const OptionValue> attributes = {};  // those that are not given have their defaults
  uint32_t trainable = 1;                    // 0: its parameters keep their initial values
  int32_t priority = 0;                      // of its backward op, larger first
  float learning_rate_scale = 1;             // of its parameters, beside those of the run
  float weight_decay_scale = 1;

  // Of layers from a configuration (Options::Layers) alone: where `op` is empty the layer is a
  // block, whose `residual` layers are added to its input as it is, or as its `shortcut` layers
  // leave it.
  Array<const LayerSpec> residual = {};
  Array<const LayerSpec> shortcut = {};
};
ENGINE_LAYOUT(LayerSpec, struct_size, op, name, attributes, trainable, priority,
              learning_rate_scale, weight_decay_scale, residual, shortcut);

// The values of every option that was published, checked and completed by the core: each getter
// finds its option, so a name that was not published, or with another type, is a bug of the plugin
// and ends the process. Valid during the call it is passed to, and so is the text that String
// gives: copy what is kept. [any-thread]
class Options {
 public:
  Options() noexcept = default;
  explicit Options(Array<const OptionValue> values) noexcept : values_(values) {}

  bool Bool(std::string_view name) const noexcept {
    return Find(name, OptionType::kBool).integer != 0;
  }
  int64_t Int(std::string_view name) const noexcept { return Find(name, OptionType::kInt).integer; }
  double Float(std::string_view name) const noexcept {
    return Find(name, OptionType::kFloat).number;
  }
  std::span<const int64_t> Ints(std::string_view name) const noexcept {
    return Find(name, OptionType::kInts).integers;
  }
  // Also the chosen word of an enum, and the name of an op or a plugin.
  std::string_view String(std::string_view name) const noexcept {
    for (const OptionValue& value : values_) {
      const bool is_text = value.type == OptionType::kString || value.type == OptionType::kEnum ||
                           value.type == OptionType::kOp || value.type == OptionType::kPlugin;
      if (value.name == name && is_text) return value.string;
    }
    ENGINE_CHECK(false, "option '%.*s' was not published", static_cast<int>(name.size()),
                 name.data());
  }
  // All of them, to hand them on (InnerPlugin::options).
  Array<const OptionValue> values() const noexcept { return values_; }
  // Valid as long as the object that is made of them.
  Array<const LayerSpec> Layers(std::string_view name) const noexcept {
    return Find(name, OptionType::kLayers).layers;
  }

  // What the getters stand on: the value of this name and type.
  const OptionValue& Find(std::string_view name, OptionType type) const noexcept {
    for (const OptionValue& value : values_) {
      if (value.name == name && value.type == type) return value;
    }
    ENGINE_CHECK(false, "option '%.*s' was not published as %s", static_cast<int>(name.size()),
                 name.data(), Name(type));
  }

 private:
  Array<const OptionValue> values_;
};

namespace layout {
template <size_t kSize>
struct Kind<FixedString<kSize>> : Kind<char[kSize]> {};
template <>
struct Kind<Options> : Kind<Array<const OptionValue>> {};
}  // namespace layout

}  // namespace engine
