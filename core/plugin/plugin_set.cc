#include "core/plugin/plugin_set.h"

namespace engine::plugin {

// A bug of the engine or a request of the user is not a plugin's to report.
Status Answer(const Status& answer) {
  const bool may = answer.code() < StatusCode::kInterrupted && answer.code() >= StatusCode::kOk;
  return may ? answer
             : Status::Error(StatusCode::kPlugin, "%s", answer.message()).WithRank(answer.rank());
}

Status BadAnswer(const char* kind, const std::string& name, const char* what) {
  return Status::Error(StatusCode::kPlugin, "%s '%s' describes %s", kind, name.c_str(), what);
}

bool CanBe(const Shape& shape, DType dtype) {
  auto size_bytes = static_cast<int64_t>(SizeOf(dtype));
  bool fits = size_bytes > 0 && shape.ndim >= 0 && shape.ndim <= kMaxDims;
  for (int32_t i = 0; fits && i < shape.ndim; ++i) {
    fits = shape[i] > 0 && !__builtin_mul_overflow(size_bytes, shape[i], &size_bytes);
  }
  return fits && size_bytes <= kMaxBytes;
}

// The views borrow names, texts and lists from `owned`, which must neither change nor move while
// they are in use; an object of a plugin copies what it keeps.
std::vector<OptionValue> Views(const std::vector<OwnedOption>& owned) {
  std::vector<OptionValue> views;
  for (const OwnedOption& option : owned) {
    OptionValue& view = views.emplace_back(OptionValue{.name = option.name,
                                                       .type = option.type,
                                                       .integer = option.integer,
                                                       .number = option.number,
                                                       .string = option.string,
                                                       .integers = option.integers});
    if (option.layers != nullptr) view.layers = *option.layers;
  }
  return views;
}

std::vector<OwnedOption> Own(Array<const OptionValue> values) {
  std::vector<OwnedOption> owned;
  for (const OptionValue& value : values) {
    owned.push_back({.name = std::string(value.name),
                     .type = value.type,
                     .integer = value.integer,
                     .number = value.number,
                     .string = std::string(value.string),
                     .integers = {value.integers.begin(), value.integers.end()}});
  }
  return owned;
}

std::vector<std::string> PluginSelection::HookNames() const {
  std::vector<std::string> names;
  for (const PluginChoice& hook : hooks) names.push_back(hook.entry.name);
  return names;
}

}  // namespace engine::plugin
