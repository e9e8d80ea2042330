#include "app/config/layers.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/plugin/layer_list.h"
#include "core/plugin/nearest.h"
#include "core/plugin/option_value.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

using LayerConfigs = std::vector<plugin::OwnedLayer>;

Result<LayerConfigs> ReadLayers(const Document& document, const Schema& schema, const Cursor& block,
                                const pb::FieldDescriptor* field);

// What `block` gives, or the default; a list that is not given has none.
Result<plugin::OwnedOption> ReadOption(const Document& document, const Schema& schema,
                                       const Cursor& block, const pb::FieldDescriptor* field,
                                       const OptionSpec& spec) {
  const pb::Reflection* reflection = block.message->GetReflection();
  plugin::OwnedOption value{.name = field->name(), .type = spec.type};
  switch (spec.type) {
    case OptionType::kBool:
      value.integer = reflection->GetBool(*block.message, field);
      break;
    case OptionType::kInt:
      value.integer = reflection->GetInt64(*block.message, field);
      break;
    case OptionType::kFloat:
      value.number = reflection->GetDouble(*block.message, field);
      break;
    case OptionType::kInts:
      if (!block.Has(field)) return plugin::ParseOptionValue(spec, spec.default_value.view());
      for (int i = 0; i < block.Size(field); ++i) {
        value.integers.push_back(reflection->GetRepeatedInt64(*block.message, field, i));
      }
      break;
    case OptionType::kLayers: {
      ENGINE_ASSIGN_OR_RETURN(auto layers, ReadLayers(document, schema, block, field));
      value.layers = std::make_shared<const plugin::LayerList>(std::move(layers));
      break;
    }
    case OptionType::kString:
    case OptionType::kEnum:
    case OptionType::kOp:
      value.string = field->enum_type() != nullptr
                         ? reflection->GetEnum(*block.message, field)->name()
                         : reflection->GetString(*block.message, field);
      break;
  }
  return value;
}

// The place of the first number of a list that is out of range is that of the number.
Status CheckOption(const Document& document, const Schema& schema, const Cursor& block,
                   const pb::FieldDescriptor* field, const OptionSpec& spec,
                   const plugin::OwnedOption& value) {
  const std::vector<std::string> ops = schema.ChosenOps();
  if (spec.type == OptionType::kOp && value.string != spec.default_value.view() &&
      std::find(ops.begin(), ops.end(), value.string) == ops.end()) {
    return document.Error(block, field, -1,
                          "no chosen plugin offers the op '" + value.string + "'" +
                              plugin::DidYouMean(value.string, ops));
  }
  const Status status = plugin::CheckOptionValue(spec, value);
  if (status.ok()) return {};
  int index = -1;
  plugin::OwnedOption one{.name = value.name, .type = OptionType::kInts};
  for (size_t i = 0; index < 0 && i < value.integers.size(); ++i) {
    one.integers = {value.integers[i]};
    if (!plugin::CheckOptionValue(spec, one).ok()) index = static_cast<int>(i);
  }
  return document.Error(block, field, index,
                        "'" + field->name() + "': " +
                            (index < 0 ? status : plugin::CheckOptionValue(spec, one)).message());
}

// The fields of a layer that name an op and are set.
std::vector<const pb::FieldDescriptor*> OpsOf(const Cursor& layer, const Schema& schema) {
  std::vector<const pb::FieldDescriptor*> set, ops;
  layer.message->GetReflection()->ListFields(*layer.message, &set);
  for (const auto* field : set) {
    if (schema.PluginOf(field) != nullptr) ops.push_back(field);
  }
  return ops;
}

Status ReadOp(const Document& document, const Schema& schema, const Cursor& layer,
              const pb::FieldDescriptor* field, plugin::OwnedLayer* config) {
  const plugin::PluginEntry& plugin = *schema.PluginOf(field);
  if (!schema.IsChosen(plugin)) {
    return document.Error(layer, field, -1,
                          "the op '" + field->name() + "' is offered by the plugin '" +
                              plugin.name + "', which is not chosen; add it to 'plugins'");
  }
  config->op = field->name();
  ENGINE_ASSIGN_OR_RETURN(config->attributes,
                          ReadOptions(document, schema, document.Child(layer, field),
                                      plugin::OptionsOf(plugin.options, field->name())));
  return {};
}

Result<plugin::OwnedLayer> ReadLayer(const Document& document, const Schema& schema,
                                     const Cursor& layer) {
  const pb::Reflection* reflection = layer.message->GetReflection();
  plugin::OwnedLayer config;
  config.name = reflection->GetString(*layer.message, layer.Field("name"));
  config.trainable = reflection->GetBool(*layer.message, layer.Field("trainable"));
  config.priority = reflection->GetInt32(*layer.message, layer.Field("priority"));
  config.learning_rate_scale =
      static_cast<float>(reflection->GetDouble(*layer.message, layer.Field("learning_rate_scale")));
  config.weight_decay_scale =
      static_cast<float>(reflection->GetDouble(*layer.message, layer.Field("weight_decay_scale")));
  const auto ops = OpsOf(layer, schema);
  const auto* residual = layer.Field("residual");
  const auto* shortcut = layer.Field("shortcut");
  if (layer.Has(shortcut) && !layer.Has(residual)) {
    return document.Error(layer, shortcut, -1,
                          "'shortcut' is what the input of 'residual' goes through before it is "
                          "added; this layer has no 'residual'");
  }
  if (ops.size() > 1 || (ops.size() == 1 && layer.Has(residual))) {
    const auto* second = ops.size() > 1 ? ops[1] : residual;
    return document.Error(layer, second, -1,
                          "a layer is one op or one residual block; this one has '" +
                              ops[0]->name() + "' and '" + second->name() + "'");
  }
  if (ops.size() == 1) {
    ENGINE_RETURN_IF_ERROR(ReadOp(document, schema, layer, ops[0], &config));
    return config;
  }
  if (!layer.Has(residual)) {
    return document.Error(layer, "a layer names one op, or 'residual'; this one names none");
  }
  for (const char* key : {"learning_rate_scale", "weight_decay_scale"}) {
    if (reflection->GetDouble(*layer.message, layer.Field(key)) == 1) continue;
    return document.Error(layer, layer.Field(key), -1,
                          std::string("'").append(key).append(
                              "' is for a layer with parameters; give it to those in the block"));
  }
  const auto read = [&](const pb::FieldDescriptor* list) {
    const Cursor block = document.Child(layer, list);
    return ReadLayers(document, schema, block, block.Field("layer"));
  };
  ENGINE_ASSIGN_OR_RETURN(config.residual, read(residual));
  if (layer.Has(shortcut)) {
    ENGINE_ASSIGN_OR_RETURN(config.shortcut, read(shortcut));
  }
  return config;
}

Result<LayerConfigs> ReadLayers(const Document& document, const Schema& schema, const Cursor& block,
                                const pb::FieldDescriptor* field) {
  if (block.Size(field) == 0) {
    return document.Error(block, "there is no '" + field->name() + "' in this block");
  }
  LayerConfigs layers;
  for (int i = 0; i < block.Size(field); ++i) {
    ENGINE_ASSIGN_OR_RETURN(auto layer,
                            ReadLayer(document, schema, document.Child(block, field, i)));
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

Result<std::vector<plugin::OwnedOption>> ReadOptions(const Document& document, const Schema& schema,
                                                     const Cursor& block,
                                                     const std::vector<const OptionSpec*>& specs) {
  std::vector<plugin::OwnedOption> values;
  for (const OptionSpec* spec : specs) {
    const auto* field = block.Field(std::string(spec->name.view()));
    if (plugin::IsRequired(*spec) && !block.Has(field) && spec->type != OptionType::kLayers) {
      return document.Error(block, "'" + field->name() + "' has no default and must be given");
    }
    ENGINE_ASSIGN_OR_RETURN(plugin::OwnedOption value,
                            ReadOption(document, schema, block, field, *spec));
    ENGINE_RETURN_IF_ERROR(CheckOption(document, schema, block, field, *spec, value));
    values.push_back(std::move(value));
  }
  return values;
}

Result<std::vector<plugin::PluginChoice>> ReadPluginOptions(
    const Document& document, const Schema& schema,
    const std::vector<plugin::PluginEntry>& chosen) {
  const Cursor root = document.Root();
  std::vector<plugin::PluginChoice> choices;
  for (const plugin::PluginEntry& entry : chosen) {
    if (entry.kind > PluginKind::kHook) {  // AssignRoles refuses it
      choices.push_back({entry, {}});
      continue;
    }
    const auto* field = root.Field(entry.name);
    const auto specs = plugin::OptionsOf(entry.options, "");
    for (const OptionSpec* spec : specs) {
      if (root.Has(field) || !plugin::IsRequired(*spec)) continue;
      return document.Error(root, root.Field("plugins"), static_cast<int>(choices.size()),
                            "plugin '" + entry.name + "' needs '" + entry.name + "." +
                                std::string(spec->name.view()) + "', which has no default");
    }
    ENGINE_ASSIGN_OR_RETURN(auto options,
                            ReadOptions(document, schema, document.Child(root, field), specs));
    choices.push_back({entry, std::move(options)});
  }
  // Options of plugins that are not chosen are checked too: the next A/B run may choose them.
  std::vector<const pb::FieldDescriptor*> set;
  root.message->GetReflection()->ListFields(*root.message, &set);
  for (const auto* field : set) {
    const plugin::PluginEntry* plugin = schema.PluginOf(field);
    if (plugin == nullptr || schema.IsChosen(*plugin)) continue;
    const auto options = ReadOptions(document, schema, document.Child(root, field),
                                     plugin::OptionsOf(plugin->options, ""));
    if (!options.ok()) return options.status();
  }
  return choices;
}

Result<plugin::PluginChoice> ReadChoice(const Document& document, const Schema& schema,
                                        const std::string& block) {
  const Cursor owner = document.At(block);
  const pb::OneofDescriptor* kinds = owner.message->GetDescriptor()->FindOneofByName("kind");
  if (kinds == nullptr) {
    return document.Error(owner, "'" + block + "' needs a plugin, and none was found for it");
  }
  const auto* field =
      owner.message->GetReflection()->GetOneofFieldDescriptor(*owner.message, kinds);
  const plugin::PluginEntry& entry = *schema.PluginOf(field);
  ENGINE_ASSIGN_OR_RETURN(auto options, ReadOptions(document, schema, document.Child(owner, field),
                                                    plugin::OptionsOf(entry.options, "")));
  return plugin::PluginChoice{entry, std::move(options), document.Origin(owner, field)};
}

}  // namespace engine::config
