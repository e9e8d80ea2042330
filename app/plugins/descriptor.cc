// descriptor = PluginHeader ... OpName[op_count] ... OptionSpec[option_count] ...
//
// op_offset and option_offset count from the header, size_bytes is that of all. The first fields,
// up to size_bytes, are the handshake: no other field is looked at before they agree. What another
// compiler or a hostile file put here is plain bytes: they are copied out, never read in place.

#include "app/plugins/descriptor.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <set>
#include <type_traits>
#include <vector>

#include "app/plugins/option_value.h"

namespace engine::plugins {
namespace {

constexpr StatusCode kPlugin = StatusCode::kPlugin;

// The first fields of every descriptor of every ABI, in this order for ever: the rest has a meaning
// only if they agree.
Status CheckHandshake(const PluginHeader& header) {
  if (header.magic != kPluginMagic) {
    return Status::Error(kPlugin,
                         "the descriptor does not begin with the magic number; "
                         "make it with engine::DescribePlugin");
  }
  if (header.abi_major != ENGINE_ABI_MAJOR) {
    return Status::Error(kPlugin, "built for plugin ABI %d, this engine has ABI %d; rebuild it",
                         header.abi_major, ENGINE_ABI_MAJOR);
  }
  if (header.min_host_minor > kAbiMinor) {
    return Status::Error(kPlugin,
                         "needs plugin ABI %d.%d, this engine has %d.%d; use a newer engine",
                         ENGINE_ABI_MAJOR, header.min_host_minor, ENGINE_ABI_MAJOR, kAbiMinor);
  }
  return {};
}

// Two sides may work together when the layout of one is that of the other or one that the other
// grew out of.
Status CheckLayout(std::string_view interface, const LayoutList& theirs, const LayoutList& ours) {
  const auto knows = [](const LayoutList& list, uint64_t layout) {
    return std::ranges::find(list.layouts, layout) != std::end(list.layouts);
  };
  const uint64_t their = theirs.layouts[0], our = ours.layouts[0];
  if (their != 0 && (knows(ours, their) || knows(theirs, our))) return {};
  return Status::Error(kPlugin,
                       "built with another layout of %.*s (%016" PRIx64
                       ", this engine has %016" PRIx64
                       "); rebuild it against the headers of this engine",
                       static_cast<int>(interface.size()), interface.data(), their, our);
}

// Copies the array at `offset` out of the descriptor; its elements may have grown since.
template <typename T>
Status ReadArray(std::span<const std::byte> bytes, uint32_t offset, uint32_t count, uint32_t stride,
                 std::vector<T>* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  constexpr uint32_t kMost = 4096;  // of ops or options; a bound on garbage
  if (stride < sizeof(T)) {
    return Status::Error(kPlugin, "the descriptor has options of %u bytes instead of %zu", stride,
                         sizeof(T));
  }
  if (count > kMost || offset > bytes.size() || (bytes.size() - offset) / stride < count) {
    return Status::Error(kPlugin, "the descriptor's lists reach beyond its end");
  }
  out->resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<void*>(&(*out)[i]), bytes.data() + offset + size_t{i} * stride,
                sizeof(T));
  }
  return {};
}

Status ReadTexts(const PluginHeader& header, PluginFile* entry) {
  if (!IsText(header.name) || !IsText(header.version) || !IsText(header.device) ||
      !IsText(header.doc) || !IsText(header.compiler)) {
    return Status::Error(kPlugin,
                         "the descriptor has text that does not end, or with control characters");
  }
  if (!IsName(header.name.view())) {
    return Status::Error(kPlugin, "the plugin's name '%s' is not [a-z][a-z0-9_]*",
                         header.name.text);
  }
  if (header.name.view() != entry->name) {
    return Status::Error(kPlugin, "the plugin calls itself '%s'; its file must be libengine_%s.so",
                         header.name.text, header.name.text);
  }
  if (!IsName(header.device.view())) {
    return Status::Error(kPlugin, "the plugin's device '%s' is not [a-z][a-z0-9_]*",
                         header.device.text);
  }
  entry->version = header.version.view();
  entry->device = header.device.view();
  entry->doc = header.doc.view();
  entry->compiler = header.compiler.view();
  return {};
}

Status CheckOps(const PluginFile& entry) {
  if (!std::all_of(entry.ops.begin(), entry.ops.end(), IsName)) {
    return Status::Error(kPlugin, "an op's name is not [a-z][a-z0-9_]*");
  }
  if (std::set<std::string>(entry.ops.begin(), entry.ops.end()).size() != entry.ops.size()) {
    return Status::Error(kPlugin, "an op is listed twice");
  }
  if ((entry.kind == PluginKind::kOps) != !entry.ops.empty()) {
    return Status::Error(kPlugin,
                         "the plugin is of kind '%s' and lists %zu ops; "
                         "plugins of kind 'ops', and only they, list ops",
                         Name(entry.kind), entry.ops.size());
  }
  return {};
}

}  // namespace

std::string PluginNameOfFile(std::string_view path) {
  constexpr std::string_view kPrefix = "libengine_", kSuffix = ".so";
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (file.size() < kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) ||
      !file.ends_with(kSuffix)) {
    return "";
  }
  return std::string(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
}

Status DecodeDescriptor(std::span<const std::byte> bytes, PluginFile* entry) {
  static_assert(std::is_trivially_copyable_v<PluginHeader>);
  PluginHeader header;
  // Enough for the handshake, which another ABI with a smaller header would have too.
  if (bytes.size() < offsetof(PluginHeader, size_bytes)) {
    return Status::Error(kPlugin, "the descriptor is too small");
  }
  std::memcpy(static_cast<void*>(&header), bytes.data(), std::min(bytes.size(), sizeof header));
  ENGINE_RETURN_IF_ERROR(CheckHandshake(header));
  if (bytes.size() < sizeof header || header.size_bytes < sizeof header ||
      header.size_bytes > bytes.size()) {
    return Status::Error(kPlugin, "the descriptor states a size of %u bytes and has %zu",
                         header.size_bytes, bytes.size());
  }
  if (header.reserved != 0 || header.more_reserved != 0) {
    return Status::Error(kPlugin,
                         "the descriptor has something in reserved fields; use a newer "
                         "engine, or make it with engine::DescribePlugin");
  }
  bytes = bytes.first(header.size_bytes);
  ENGINE_RETURN_IF_ERROR(ReadTexts(header, entry));
  if (header.kind < PluginKind::kCommunicator || header.kind > kLastPluginKind) {
    return Status::Error(kPlugin, "the plugin is of kind %u, which this engine does not know",
                         static_cast<uint32_t>(header.kind));
  }
  ENGINE_RETURN_IF_ERROR(CheckLayout("the host", header.host, LayoutsOf<Host>()));
  ENGINE_RETURN_IF_ERROR(CheckLayout("options", header.options, {{kLayoutOf<Options>}}));
  ENGINE_RETURN_IF_ERROR(CheckLayout(Name(header.kind), header.role, LayoutsOf(header.kind)));
  entry->kind = header.kind;
  entry->abi_major = header.abi_major;
  entry->abi_minor = header.abi_minor;
  entry->min_host_minor = header.min_host_minor;
  std::vector<OpName> ops;
  ENGINE_RETURN_IF_ERROR(ReadArray(bytes, header.op_offset, header.op_count, sizeof(OpName), &ops));
  ENGINE_RETURN_IF_ERROR(ReadArray(bytes, header.option_offset, header.option_count,
                                   header.option_stride, &entry->options));
  for (const OpName& op : ops) entry->ops.emplace_back(op.view());
  ENGINE_RETURN_IF_ERROR(CheckOps(*entry));
  const auto is_list = [](const OptionSpec& option) { return option.type == OptionType::kLayers; };
  const bool has_layers = std::any_of(entry->options.begin(), entry->options.end(), is_list);
  if (has_layers && entry->kind != PluginKind::kModel) {
    return Status::Error(kPlugin,
                         "the plugin is of kind '%s' and has an option of layers, which only "
                         "plugins of kind 'model' may have",
                         Name(entry->kind));
  }
  return CheckOptionSpecs(entry->options, entry->ops);
}

}  // namespace engine::plugins
