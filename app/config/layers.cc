#include "app/config/layers.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "app/plugins/option_value.h"
#include "app/plugins/words.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

// A list of layers with all that its views point to: neither may move, and a deque does not move
// what it holds.
struct LayerList {
  std::vector<LayerSpec> layers;
  std::deque<std::string> texts;
  std::deque<std::vector<plugin::OwnedOption>> options;
  std::deque<std::vector<OptionValue>> attributes;
  std::deque<std::vector<LayerSpec>> blocks;
};

class Reader {
 public:
  Reader(const Document& document, const Schema& schema, Problems* problems)
      : document_(document), schema_(schema), problems_(*problems) {}

  std::vector<plugin::PluginChoice> ReadPluginOptions(
      const std::vector<plugin::PluginEntry>& chosen) const {
    const Cursor root = document_.Root();
    std::vector<plugin::PluginChoice> choices;
    for (const plugin::PluginEntry& entry : chosen) {
      if (entry.kind > PluginKind::kHook) {  // AssignRoles refuses it
        choices.push_back({entry, {}});
        continue;
      }
      const auto* field = root.Field(entry.name);
      const auto specs = plugins::OptionsOf(entry.options, "");
      const auto required = std::ranges::find_if(
          specs, [](const OptionSpec* spec) { return plugins::IsRequired(*spec); });
      if (!root.Has(field) && required != specs.end()) {
        problems_.AddMissing(
            document_.Error(root, root.Field("plugins"), static_cast<int>(choices.size()),
                            "plugin '" + entry.name + "' needs '" + entry.name + "." +
                                std::string((*required)->name.view()) + "', which has no default"));
        choices.push_back({entry, {}});
        continue;
      }
      choices.push_back({entry, ReadOptions(document_.Child(root, field), specs)});
    }
    // Options of plugins that are not chosen are checked too: the next A/B run may choose them.
    std::vector<const pb::FieldDescriptor*> set;
    root.message->GetReflection()->ListFields(*root.message, &set);
    for (const auto* field : set) {
      const plugin::PluginEntry* plugin = schema_.PluginOf(field);
      if (plugin == nullptr || schema_.IsChosen(*plugin)) continue;
      ReadOptions(document_.Child(root, field), plugins::OptionsOf(plugin->options, ""));
    }
    return choices;
  }

  plugin::PluginChoice ReadChoice(const std::string& block) const {
    const Cursor owner = document_.At(block);
    const pb::OneofDescriptor* kinds = owner.message->GetDescriptor()->FindOneofByName("kind");
    if (kinds == nullptr) {
      problems_.AddMissing(
          document_.Error(owner, "'" + block + "' needs a plugin, and none was found for it"));
      return {};
    }
    const auto* field =
        owner.message->GetReflection()->GetOneofFieldDescriptor(*owner.message, kinds);
    if (field == nullptr) return {};
    const plugin::PluginEntry& entry = *schema_.PluginOf(field);
    return {entry,
            ReadOptions(document_.Child(owner, field), plugins::OptionsOf(entry.options, "")),
            document_.Origin(owner, field)};
  }

  // PluginChoice::inner, and what is inside of that. `around`: the plugins that `outer` is inside of.
  Status ReadInner(const plugins::PluginCatalog& catalog, std::vector<std::string> around,
                   Schema& schema, plugin::PluginChoice* outer) const {
    const Cursor root = document_.Root();
    around.push_back(outer->entry.name);
    for (const OptionSpec& spec : outer->entry.options) {
      if (spec.type != OptionType::kPlugin) continue;
      const Cursor block = document_.Child(root, root.Field(outer->entry.name));
      const auto* field = block.Field(std::string(spec.name.view()));
      const std::string name = block.message->GetReflection()->GetString(*block.message, field);
      const Status found = CheckInner(catalog, around, name, std::string(spec.choices.view()));
      if (!found.ok()) {
        const std::string option = "'" + outer->entry.name + "." + field->name() + "': ";
        return document_.Error(block, field, -1, option + found.message(), found.code());
      }
      const plugin::PluginEntry& entry = *schema.PluginOf(root.Field(name));
      schema.AddInner(entry);
      plugin::PluginChoice& inner = outer->inner.emplace_back(plugin::PluginChoice{entry, {}});
      inner.options = ReadOptions(document_.Child(root, root.Field(name)),
                                  plugins::OptionsOf(entry.options, ""));
      ENGINE_RETURN_IF_ERROR(ReadInner(catalog, around, schema, &inner));
    }
    return {};
  }

 private:
  // A clause on why `name` can be no plugin of this kind inside of those `around` it.
  Status CheckInner(const plugins::PluginCatalog& catalog, const std::vector<std::string>& around,
                    const std::string& name, const std::string& kind) const {
    const auto* field = document_.Root().Field(name);
    const plugin::PluginEntry* entry = field == nullptr ? nullptr : schema_.PluginOf(field);
    if (entry == nullptr && plugins::IsName(name)) {
      ENGINE_RETURN_IF_ERROR(catalog.Find(name).status());
    }
    if (entry == nullptr || Name(entry->kind) != kind) {
      return Status::Error(StatusCode::kPlugin, "'%s' is no name of a %s", name.c_str(),
                           kind.c_str());
    }
    if (std::find(around.begin(), around.end(), name) == around.end()) return {};
    return Status::Error(StatusCode::kPlugin, "plugin '%s' would be inside of itself: %s",
                         name.c_str(), plugins::Join(around, " > ").c_str());
  }

  // The values of `specs` in their order, with defaults for those that `block` does not give, and without
  // those that are wrong.
  std::vector<plugin::OwnedOption> ReadOptions(const Cursor& block,
                                               const std::vector<const OptionSpec*>& specs) const {
    std::vector<plugin::OwnedOption> values;
    for (const OptionSpec* spec : specs) {
      const auto* field = block.Field(std::string(spec->name.view()));
      if (plugins::IsRequired(*spec) && !block.Has(field) && spec->type != OptionType::kLayers) {
        problems_.AddMissing(
            document_.Error(block, "'" + field->name() + "' has no default and must be given"));
        continue;
      }
      auto value = ReadOption(block, field, *spec);
      const Status status = value.ok() ? CheckOption(block, field, *spec, *value) : value.status();
      problems_.Add(status);
      if (status.ok()) values.push_back(*std::move(value));
    }
    return values;
  }

  // What `block` gives, or the default; a list that is not given has none.
  Result<plugin::OwnedOption> ReadOption(const Cursor& block, const pb::FieldDescriptor* field,
                                         const OptionSpec& spec) const {
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
        if (!block.Has(field)) return plugins::ParseOptionValue(spec, spec.default_value.view());
        for (int i = 0; i < block.Size(field); ++i) {
          value.integers.push_back(reflection->GetRepeatedInt64(*block.message, field, i));
        }
        break;
      case OptionType::kLayers: {
        if (!plugins::IsRequired(spec) && block.Size(field) == 0) break;
        const auto list = std::make_shared<LayerList>();
        list->layers = ReadLayers(block, field, list.get());
        value.layers = std::shared_ptr<const std::vector<LayerSpec>>(list, &list->layers);
        break;
      }
      case OptionType::kString:
      case OptionType::kEnum:
      case OptionType::kOp:
      case OptionType::kPlugin:
        value.string = field->enum_type() != nullptr
                           ? reflection->GetEnum(*block.message, field)->name()
                           : reflection->GetString(*block.message, field);
        break;
    }
    return value;
  }

  // The place of the first number of a list that is out of range is that of the number.
  Status CheckOption(const Cursor& block, const pb::FieldDescriptor* field, const OptionSpec& spec,
                     const plugin::OwnedOption& value) const {
    const std::vector<std::string> ops = schema_.ChosenOps();
    if (spec.type == OptionType::kOp && value.string != spec.default_value.view() &&
        std::find(ops.begin(), ops.end(), value.string) == ops.end()) {
      return document_.Error(block, field, -1,
                             "no chosen plugin offers the op '" + value.string + "'" +
                                 plugins::DidYouMean(value.string, ops));
    }
    const Status status = plugins::CheckOptionValue(spec, value);
    if (status.ok()) return {};
    int index = -1;
    plugin::OwnedOption one{.name = value.name, .type = OptionType::kInts};
    for (size_t i = 0; index < 0 && i < value.integers.size(); ++i) {
      one.integers = {value.integers[i]};
      if (!plugins::CheckOptionValue(spec, one).ok()) index = static_cast<int>(i);
    }
    return document_.Error(
        block, field, index,
        "'" + field->name() +
            "': " + (index < 0 ? status : plugins::CheckOptionValue(spec, one)).message());
  }

  // The fields of a layer that name an op and are set.
  std::vector<const pb::FieldDescriptor*> OpsOf(const Cursor& layer) const {
    std::vector<const pb::FieldDescriptor*> set, ops;
    layer.message->GetReflection()->ListFields(*layer.message, &set);
    for (const auto* field : set) {
      if (schema_.PluginOf(field) != nullptr) ops.push_back(field);
    }
    return ops;
  }

  Status ReadOp(const Cursor& layer, const pb::FieldDescriptor* field, LayerSpec* spec,
                LayerList* list) const {
    const plugin::PluginEntry& plugin = *schema_.PluginOf(field);
    if (!schema_.IsChosen(plugin)) {
      return document_.Error(layer, field, -1,
                             "the op '" + field->name() + "' is offered by the plugin '" +
                                 plugin.name + "', which is not chosen; add it to 'plugins'");
    }
    spec->op = list->texts.emplace_back(field->name());
    list->options.push_back(ReadOptions(document_.Child(layer, field),
                                        plugins::OptionsOf(plugin.options, field->name())));
    spec->attributes = list->attributes.emplace_back(plugin::Views(list->options.back()));
    return {};
  }

  // The residual block that a layer is, with its shortcut if it has one.
  Status ReadBlock(const Cursor& layer, LayerSpec* spec, LayerList* list) const {
    const pb::Reflection* reflection = layer.message->GetReflection();
    for (const char* key : {"learning_rate_scale", "weight_decay_scale"}) {
      if (reflection->GetDouble(*layer.message, layer.Field(key)) == 1) continue;
      return document_.Error(
          layer, layer.Field(key), -1,
          std::string("'").append(key).append(
              "' is for a layer with parameters; give it to those in the block"));
    }
    const auto read = [&](const char* name) -> Array<const LayerSpec> {
      if (!layer.Has(layer.Field(name))) return {};
      const Cursor block = document_.Child(layer, layer.Field(name));
      auto layers = ReadLayers(block, block.Field("layer"), list);
      return list->blocks.emplace_back(std::move(layers));
    };
    spec->residual = read("residual");
    spec->shortcut = read("shortcut");
    return {};
  }

  Result<LayerSpec> ReadLayer(const Cursor& layer, LayerList* list) const {
    const pb::Message& message = *layer.message;
    const pb::Reflection* reflection = message.GetReflection();
    const auto scale = [&](const char* key) {
      return static_cast<float>(reflection->GetDouble(message, layer.Field(key)));
    };
    LayerSpec spec{
        .name = list->texts.emplace_back(reflection->GetString(message, layer.Field("name"))),
        .trainable = reflection->GetBool(message, layer.Field("trainable")) ? 1u : 0u,
        .priority = reflection->GetInt32(message, layer.Field("priority")),
        .learning_rate_scale = scale("learning_rate_scale"),
        .weight_decay_scale = scale("weight_decay_scale")};
    const auto ops = OpsOf(layer);
    const auto* residual = layer.Field("residual");
    const auto* shortcut = layer.Field("shortcut");
    if (layer.Has(shortcut) && !layer.Has(residual)) {
      return document_.Error(layer, shortcut, -1,
                             "'shortcut' is what the input of 'residual' goes through before it is "
                             "added; this layer has no 'residual'");
    }
    if (ops.size() > 1 || (ops.size() == 1 && layer.Has(residual))) {
      const auto* second = ops.size() > 1 ? ops[1] : residual;
      return document_.Error(layer, second, -1,
                             "a layer is one op or one residual block; this one has '" +
                                 ops[0]->name() + "' and '" + second->name() + "'");
    }
    if (ops.empty() && !layer.Has(residual) && problems_.left_out()) return spec;
    if (ops.empty() && !layer.Has(residual)) {
      return document_.Error(layer, "a layer names one op, or 'residual'; this one names none");
    }
    ENGINE_RETURN_IF_ERROR(ops.empty() ? ReadBlock(layer, &spec, list)
                                       : ReadOp(layer, ops[0], &spec, list));
    return spec;
  }

  std::vector<LayerSpec> ReadLayers(const Cursor& block, const pb::FieldDescriptor* field,
                                    LayerList* list) const {
    if (block.Size(field) == 0) {
      problems_.AddMissing(
          document_.Error(block, "there is no '" + field->name() + "' in this block"));
    }
    std::vector<LayerSpec> layers;
    for (int i = 0; i < block.Size(field); ++i) {
      const auto layer = ReadLayer(document_.Child(block, field, i), list);
      problems_.Add(layer.status());
      if (layer.ok()) layers.push_back(*layer);
    }
    return layers;
  }

  const Document& document_;
  const Schema& schema_;
  Problems& problems_;
};

}  // namespace

Result<std::vector<plugin::PluginChoice>> ReadPluginOptions(const Document& document,
                                                            const Discovery& found, Schema& schema,
                                                            Problems* problems) {
  const Reader reader(document, schema, problems);
  auto choices = reader.ReadPluginOptions(found.chosen);
  for (plugin::PluginChoice& choice : choices) {
    ENGINE_RETURN_IF_ERROR(reader.ReadInner(found.catalog, {}, schema, &choice));
  }
  return choices;
}

plugin::PluginChoice ReadChoice(const Document& document, const Schema& schema,
                                const std::string& block, Problems* problems) {
  return Reader(document, schema, problems).ReadChoice(block);
}

}  // namespace engine::config
