#include "app/config/layers.h"

#include "core/plugin/option_value.h"

namespace engine {
namespace {

namespace pb = google::protobuf;

OwnedOption ReadOption(const Cursor& block, const pb::FieldDescriptor* field, OptionType type) {
  const pb::Reflection* reflection = block.message->GetReflection();
  OwnedOption value{.name = field->name(), .type = type};
  switch (type) {
    case OptionType::kBool:
      value.integer = reflection->GetBool(*block.message, field);
      break;
    case OptionType::kInt:
      value.integer = reflection->GetInt64(*block.message, field);
      break;
    case OptionType::kFloat:
      value.number = reflection->GetDouble(*block.message, field);
      break;
    case OptionType::kString:
    case OptionType::kEnum:
      value.string = reflection->GetString(*block.message, field);
      break;
  }
  return value;
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

Result<std::vector<LayerConfig>> ReadNet(const Document& document, const Schema& schema,
                                         const Cursor& net);

Status ReadOp(const Document& document, const Schema& schema, const Cursor& layer,
              const pb::FieldDescriptor* field, LayerConfig* config) {
  const PluginEntry& plugin = *schema.PluginOf(field);
  if (!schema.IsChosen(plugin)) {
    return document.Error(layer, field, -1,
                          "the op '" + field->name() + "' is offered by the plugin '" +
                              plugin.name + "', which is not chosen; add it to 'plugins'");
  }
  config->op = field->name();
  ENGINE_ASSIGN_OR_RETURN(config->attributes,
                          ReadOptions(document, document.Child(layer, field),
                                      OptionsOf(plugin.options, field->name())));
  return {};
}

Result<LayerConfig> ReadLayer(const Document& document, const Schema& schema, const Cursor& layer) {
  const pb::Reflection* reflection = layer.message->GetReflection();
  LayerConfig config;
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
  ENGINE_ASSIGN_OR_RETURN(config.residual,
                          ReadNet(document, schema, document.Child(layer, residual)));
  if (layer.Has(shortcut)) {
    ENGINE_ASSIGN_OR_RETURN(config.shortcut,
                            ReadNet(document, schema, document.Child(layer, shortcut)));
  }
  return config;
}

Result<std::vector<LayerConfig>> ReadNet(const Document& document, const Schema& schema,
                                         const Cursor& net) {
  const auto* field = net.Field("layer");
  if (net.Size(field) == 0) return document.Error(net, "there is no 'layer' in this block");
  std::vector<LayerConfig> layers;
  for (int i = 0; i < net.Size(field); ++i) {
    ENGINE_ASSIGN_OR_RETURN(auto layer, ReadLayer(document, schema, document.Child(net, field, i)));
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

Result<std::vector<OwnedOption>> ReadOptions(const Document& document, const Cursor& block,
                                             const std::vector<const OptionSpec*>& specs) {
  std::vector<OwnedOption> values;
  for (const OptionSpec* spec : specs) {
    const auto* field = block.Field(std::string(spec->name.view()));
    if (IsRequired(*spec) && !block.Has(field)) {
      return document.Error(block, "'" + field->name() + "' has no default and must be given");
    }
    OwnedOption value = ReadOption(block, field, spec->type);
    const Status status = CheckOptionValue(*spec, value);
    if (!status.ok()) {
      return document.Error(block, field, -1, "'" + field->name() + "': " + status.message());
    }
    values.push_back(std::move(value));
  }
  return values;
}

Result<std::vector<PluginChoice>> ReadPluginOptions(const Document& document, const Schema& schema,
                                                    const std::vector<PluginEntry>& chosen) {
  const Cursor root = document.Root();
  std::vector<PluginChoice> choices;
  for (const PluginEntry& entry : chosen) {
    const auto* field = root.Field(entry.name);
    const auto specs = OptionsOf(entry.options, "");
    for (const OptionSpec* spec : specs) {
      if (root.Has(field) || !IsRequired(*spec)) continue;
      return document.Error(root, root.Field("plugins"), static_cast<int>(choices.size()),
                            "plugin '" + entry.name + "' needs '" + entry.name + "." +
                                std::string(spec->name.view()) + "', which has no default");
    }
    ENGINE_ASSIGN_OR_RETURN(auto options,
                            ReadOptions(document, document.Child(root, field), specs));
    choices.push_back({entry, std::move(options)});
  }
  // Options of plugins that are not chosen are checked too: the next A/B run may choose them.
  std::vector<const pb::FieldDescriptor*> set;
  root.message->GetReflection()->ListFields(*root.message, &set);
  for (const auto* field : set) {
    const PluginEntry* plugin = schema.PluginOf(field);
    if (plugin == nullptr || schema.IsChosen(*plugin)) continue;
    const auto options =
        ReadOptions(document, document.Child(root, field), OptionsOf(plugin->options, ""));
    if (!options.ok()) return options.status();
  }
  return choices;
}

Result<std::vector<LayerConfig>> ReadLayers(const Document& document, const Schema& schema) {
  const Cursor model = document.At("model");
  const auto* net = model.Field("net");
  if (!model.Has(net)) return std::vector<LayerConfig>();
  return ReadNet(document, schema, document.Child(model, net));
}

}  // namespace engine
