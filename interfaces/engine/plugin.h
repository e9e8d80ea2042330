// The descriptor of a plugin: the one symbol it exports.
//
//   extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
//       {.name = "fifo_sched", .version = "1.0.0", .kind = engine::PluginKind::kScheduler,
//        .doc = "sends each gradient as soon as it is ready", .create = Create},
//       engine::NoOps(), engine::NoOptions());
//
// The descriptor is constant data without pointers (but for `create`), so the core reads name, ABI,
// options and ops from the file and refuses it with a sentence before any code of the library runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "engine/abi/interface.h"
#include "engine/abi/layout.h"
#include "engine/abi_minor.h"
#include "engine/communicator.h"
#include "engine/dataset.h"
#include "engine/gradient_hook.h"
#include "engine/host.h"
#include "engine/model.h"
#include "engine/op.h"
#include "engine/optimizer.h"
#include "engine/options.h"
#include "engine/scheduler.h"
#include "engine/status.h"

namespace engine {

// Part of the symbol's name; 0 while the ABI is a draft, of which each minor may refuse the one
// before. An engine of another major does not find the symbol, and names both majors.
#define ENGINE_ABI_MAJOR 0
#define ENGINE_ABI_MAJOR_TEXT "0"
#define ENGINE_PLUGIN_SYMBOL engine_plugin_v0
#define ENGINE_PLUGIN_SYMBOL_PREFIX "engine_plugin_v"
constexpr uint64_t kPluginMagic = 0x6e69676e65313031;

// Which role the library has; a library has one. What each makes is the class of the same name, of
// kOps the OpLibrary, of kHook the GradientHook. A number that an engine does not know it refuses.
enum class PluginKind : uint32_t {
  kCommunicator = 1,
  kScheduler = 2,
  kOptimizer = 3,
  kOps = 4,
  kHook = 5,
  kDataset = 6,
  kModel = 7,
};
constexpr PluginKind kLastPluginKind = PluginKind::kModel;

// As messages and lists of plugins have it. Static text.
constexpr const char* Name(PluginKind kind) noexcept {
  constexpr const char* kNames[] = {"unknown", "communicator", "scheduler", "optimizer",
                                    "ops",     "hook",         "dataset",   "model"};
  const auto index = static_cast<size_t>(kind);
  return kNames[index < std::size(kNames) ? index : 0];
}

// The code of a plugin ends no process, whatever is called before and after.
//
// Makes the plugin's object: a Communicator, Scheduler, Optimizer, OpLibrary, GradientHook, Dataset
// or Model according to `kind`, as that type's Object base. The caller deletes it, before `host`.
// Create may be called several times, for several ranks in one process, also from several threads
// at once, so state belongs to the object and not to the library. Create makes an object of any
// values that the descriptor allows, or says in a sentence why it does not (kConfig, kUnsupported,
// ...).
//
// `options` are valid during the call: copy what is kept. *out is written on success alone; a
// success without an object is an error of the plugin. [setup]
using CreateFunction = StatusValue (*)(Host& host, const Options& options, Object** out) noexcept;

// What an author says of a plugin, for DescribePlugin. Texts have at most the stated bytes, with
// the final NUL, and no control characters; a longer one does not compile. A plugin should have a
// version and one line of doc.
struct PluginInfo {
  FixedString<32> name = {};     // [a-z][a-z0-9_]*; the file is libengine_<name>.so
  FixedString<32> version = {};  // the same on all ranks of a run
  PluginKind kind = PluginKind::kCommunicator;
  // The least ABI minor (abi_minor.h) that the plugin can do with: less than the one of these
  // headers if it asks for no more than an older engine has. An older engine refuses the plugin in
  // a sentence.
  uint16_t min_host_minor = kAbiMinor;
  // Of ops alone. "cpu" or "cuda" where the library makes a Device, of which a run has exactly one:
  // The device of the descriptor is Device::type(). "any" where it adds ops to the device of
  // another.
  FixedString<16> device = "any";
  FixedString<160> doc = {};  // what the lists of the command line show
  CreateFunction create = nullptr;
};

// What a plugin was built with: the layout of an interface, and those released before it that are
// its beginning. Two sides fit when the first of one is in the list of the other.
struct LayoutList {
  uint64_t layouts[4] = {};  // its own first; 0: no more
};

template <typename X>
constexpr LayoutList LayoutsOf() noexcept {
  static_assert(kOlderLayouts<X>.size() < std::size(LayoutList().layouts));
  LayoutList list{{kLayoutOf<X>}};
  size_t count = 1;
  for (const uint64_t older : kOlderLayouts<X>) list.layouts[count++] = older;
  return list;
}

// Of the object that a plugin of `kind` makes.
constexpr LayoutList LayoutsOf(PluginKind kind) noexcept {
  const LayoutList lists[] = {{},
                              LayoutsOf<Communicator>(),
                              LayoutsOf<Scheduler>(),
                              LayoutsOf<Optimizer>(),
                              LayoutsOf<OpLibrary>(),
                              LayoutsOf<GradientHook>(),
                              LayoutsOf<Dataset>(),
                              LayoutsOf<Model>()};
  return lists[static_cast<size_t>(kind)];
}

// The beginning of the descriptor, as docs/plugin_abi.md has its format. DescribePlugin fills it
// in. The first 16 bytes, up to `reserved`, stay as they are in every ABI: an engine looks at
// nothing else before they agree.
struct PluginHeader {
  uint64_t magic = kPluginMagic;
  uint16_t abi_major = ENGINE_ABI_MAJOR;
  uint16_t abi_minor = kAbiMinor;
  uint16_t min_host_minor = 0;
  uint16_t reserved = 0;    // 0
  uint32_t size_bytes = 0;  // of the whole descriptor
  PluginKind kind = PluginKind::kCommunicator;
  uint32_t op_count = 0;      // FixedString<32> each, from op_offset
  uint32_t op_offset = 0;     // bytes from the header, like option_offset
  uint32_t option_count = 0;  // OptionSpec each, from option_offset
  uint32_t option_offset = 0;
  uint32_t option_stride = sizeof(OptionSpec);  // bytes from one option to the next
  uint32_t more_reserved = 0;                   // 0
  LayoutList host = LayoutsOf<Host>();
  LayoutList role = {};  // of the object that `create` makes
  LayoutList options = {{kLayoutOf<Options>}};
  FixedString<32> name = {};
  FixedString<32> version = {};
  FixedString<16> device = {};
  FixedString<160> doc = {};
  FixedString<96> compiler = {};  // that made the plugin, for bug reports: any may be used
  CreateFunction create = nullptr;
};

ENGINE_LAYOUT(LayoutList, layouts);
ENGINE_LAYOUT(PluginHeader, magic, abi_major, abi_minor, min_host_minor, reserved, size_bytes, kind,
              op_count, op_offset, option_count, option_offset, option_stride, more_reserved, host,
              role, options, name, version, device, doc, compiler, create);

// [a-z][a-z0-9_]*. Plugins of kind kOps, and only they, list ops, each once; models call
// the ops of all chosen plugins by these names.
using OpName = FixedString<32>;
constexpr std::array<OpName, 0> NoOps() noexcept {
  return {};
}
constexpr std::array<OptionSpec, 0> NoOptions() noexcept {
  return {};
}

// What the symbol is. C++ has no empty array: the counts of the header say what there is.
template <size_t kOps, size_t kOptions>
struct PluginDescriptor {
  PluginHeader header;
  OpName ops[kOps > 0 ? kOps : 1] = {};
  OptionSpec options[kOptions > 0 ? kOptions : 1];
};

// The descriptor of a plugin with these ops and options, made by the compiler: see above. Options
// of an op have its name as their scope. std::array{OptionSpec{...}, ...} makes a list.
template <size_t kOps, size_t kOptions>
constexpr PluginDescriptor<kOps, kOptions> DescribePlugin(
    const PluginInfo& info, const std::array<OpName, kOps>& ops,
    const std::array<OptionSpec, kOptions>& options) noexcept {
  using Descriptor = PluginDescriptor<kOps, kOptions>;
  Descriptor descriptor;
  PluginHeader& header = descriptor.header;
  header.min_host_minor = info.min_host_minor;
  header.size_bytes = sizeof(Descriptor);
  header.kind = info.kind;
  header.role = LayoutsOf(info.kind);
  header.op_count = kOps;
  header.op_offset = offsetof(Descriptor, ops);
  header.option_count = kOptions;
  header.option_offset = offsetof(Descriptor, options);
  header.name = info.name;
  header.version = info.version;
  header.device = info.device;
  header.doc = info.doc;
#ifdef __clang__
  header.compiler = __VERSION__;  // "Clang 14.0.6"
#else
  header.compiler = "GCC " __VERSION__;
#endif
  header.create = info.create;
  for (size_t i = 0; i < kOps; ++i) descriptor.ops[i] = ops[i];
  for (size_t i = 0; i < kOptions; ++i) descriptor.options[i] = options[i];
  return descriptor;
}

}  // namespace engine

// Visible although all else of the library is hidden, and kept although nothing in it uses the
// symbol.
#define ENGINE_PLUGIN_EXPORT __attribute__((visibility("default"), used))
