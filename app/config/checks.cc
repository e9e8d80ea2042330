#include "app/config/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "app/config/engine.pb.h"
#include "core/plugin/nearest.h"

namespace engine {
namespace {

namespace pb = google::protobuf;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestScale = 1e9;

// Of a singular or repeated number, applied where it is set. docs/configuration.md has the list.
struct NumberRule {
  const char *block, *key;
  double least, most;
  bool least_excluded = false, most_excluded = false;
};

constexpr NumberRule kNumberRules[] = {
    {"model.mlp", "hidden", 1, 1 << 20},
    {"model.gpt", "layers", 1, 1024},
    {"model.gpt", "width", 1, 1 << 20},
    {"model.gpt", "heads", 1, 1 << 16},
    {"model.resnet", "blocks", 1, 1024},
    {"model.resnet", "width", 1, 1 << 16},
    {"model.cnn", "channels", 1, 1 << 16},
    {"data", "prefetch", 0, 1024},
    {"data.augment", "crop_padding", 0, 256},
    {"data.mnist", "holdout", 0, 1, false, true},
    {"data.text", "context", 1, 1 << 20},
    {"data.text", "holdout", 0, 1, false, true},
    {"data.synthetic", "samples", 1, 1e12},
    {"data.synthetic", "eval_samples", 0, 1e12},
    {"data.synthetic", "shape", 1, 1 << 30},
    {"data.synthetic", "classes", 2, 1 << 20},
    {"data.tokens", "context", 1, 1 << 20},
    {"data.tokens", "vocabulary", 2, 1 << 16},
    {"data.tokens", "holdout", 0, 1, false, true},
    {"train", "steps", 1, 1e15},
    {"train", "epochs", 0, 1e9, true},
    {"train", "tokens", 1, 1e15},
    {"train", "global_batch", 1, 1 << 30},
    {"train", "batch_per_rank", 1, 1 << 30},
    {"train", "evaluate_every", -1, 1e15},
    {"train", "evaluate_samples", 0, 1e15},
    {"train", "checkpoint_every", 0, 1e15},
    {"train", "micro_batches", 1, 1 << 20},
    {"train", "loss_scale", 1e-9, 1e9},
    {"train.learning_rate", "base", 0, kInfinity, false, true},
    {"train.learning_rate", "warmup_steps", 0, 1e15},
    {"train.learning_rate", "final_ratio", 0, 1},
    {"communication", "timeout_ms", 1, 86400000},
    {"communication", "rendezvous_timeout_ms", 1, 86400000},
    {"output", "keep_checkpoints", 1, 1000},
    {"output", "sample_bytes", 0, 1 << 24},
    {"output", "trace_spans", 1, 1 << 26},
};

double NumberOf(const Cursor& block, const pb::FieldDescriptor* field, int index) {
  const pb::Reflection& access = *block.message->GetReflection();
  const pb::Message& message = *block.message;
  switch (field->cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_INT32:
      return index < 0 ? access.GetInt32(message, field)
                       : access.GetRepeatedInt32(message, field, index);
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(index < 0 ? access.GetInt64(message, field)
                                           : access.GetRepeatedInt64(message, field, index));
    default:
      return access.GetDouble(message, field);
  }
}

std::string Text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", number);
  return text;
}

std::string Bounds(const NumberRule& rule) {
  const std::string least = (rule.least_excluded ? "above " : "at least ") + Text(rule.least);
  if (std::isinf(rule.most)) return least + " and finite";
  return least + (rule.most_excluded ? " and below " : " and at most ") + Text(rule.most);
}

Status CheckNumber(const Document& document, const Cursor& block, const NumberRule& rule) {
  const pb::FieldDescriptor* field = block.Field(rule.key);
  const int count = field->is_repeated() ? block.Size(field) : block.Has(field);
  for (int i = 0; i < count; ++i) {
    const int index = field->is_repeated() ? i : -1;
    const double number = NumberOf(block, field, index);
    // Written so that NaN fails.
    const bool high_enough = rule.least_excluded ? number > rule.least : number >= rule.least;
    const bool low_enough = rule.most_excluded ? number < rule.most : number <= rule.most;
    if (high_enough && low_enough) continue;
    return document.Error(
        block, field, index,
        "'" + field->name() + "' is " + Text(number) + " and must be " + Bounds(rule));
  }
  return {};
}

// Exactly one of the keys, which are two or more.
Status CheckOneOf(const Document& document, const Cursor& block,
                  const std::vector<std::string>& keys) {
  std::string all, first;
  for (const std::string& key : keys) {
    all += (all.empty() ? "'" : key == keys.back() ? "' and '" : "', '") + key;
    const pb::FieldDescriptor* field = block.Field(key);
    if (!block.Has(field)) continue;
    if (!first.empty()) {
      return document.Error(block, field, -1,
                            "'" + first + "' and '" + key + "' exclude each other; keep one");
    }
    first = key;
  }
  return first.empty() ? document.Error(block, "'train' needs one of " + all + "'") : Status();
}

Status Require(const Document& document, const Cursor& block, const char* key) {
  if (block.Has(block.Field(key))) return {};
  return document.Error(block, "'" + block.path + "' needs '" + key + "'");
}

// The member of the oneof `kind` that is set.
Result<const pb::FieldDescriptor*> KindOf(const Document& document, const Cursor& block) {
  const pb::OneofDescriptor* kinds = block.message->GetDescriptor()->FindOneofByName("kind");
  const auto* kind = block.message->GetReflection()->GetOneofFieldDescriptor(*block.message, kinds);
  if (kind != nullptr) return kind;
  std::vector<std::string> names;
  for (int i = 0; i < kinds->field_count(); ++i) names.push_back(kinds->field(i)->name());
  return document.Error(block, "'" + block.path + "' needs one of: " + Join(names));
}

// The activation of an mlp is an op of a chosen plugin.
Status CheckActivation(const Document& document, const Schema& schema, const Cursor& mlp) {
  const auto* field = mlp.Field("activation");
  const std::string name = mlp.message->GetReflection()->GetString(*mlp.message, field);
  const pb::Descriptor* layer = field->file()->FindMessageTypeByName("Layer");
  std::vector<std::string> ops;
  for (int i = 0; i < layer->field_count(); ++i) {
    const PluginEntry* plugin = schema.PluginOf(layer->field(i));
    if (plugin != nullptr && schema.IsChosen(*plugin)) ops.push_back(layer->field(i)->name());
  }
  if (std::find(ops.begin(), ops.end(), name) != ops.end()) return {};
  return document.Error(mlp, field, -1,
                        "no chosen plugin offers the op '" + name + "'" + DidYouMean(name, ops));
}

Status CheckModel(const Document& document, const Schema& schema) {
  const Cursor model = document.At("model");
  ENGINE_ASSIGN_OR_RETURN(const auto* kind, KindOf(document, model));
  const Cursor block = document.Child(model, kind);
  if (kind->name() == "mlp") return CheckActivation(document, schema, block);
  if (kind->name() != "gpt") return {};
  const double width = NumberOf(block, block.Field("width"), -1);
  const double heads = NumberOf(block, block.Field("heads"), -1);
  if (std::fmod(width, heads) == 0) return {};
  return document.Error(
      block, block.Field(block.Has(block.Field("heads")) ? "heads" : "width"), -1,
      "the width " + Text(width) + " must be a multiple of the number of heads, " + Text(heads));
}

Status CheckData(const Document& document) {
  const Cursor data = document.At("data");
  ENGINE_ASSIGN_OR_RETURN(const auto* kind, KindOf(document, data));
  const Cursor block = document.Child(data, kind);
  const bool is_text = kind->name() == "text" || kind->name() == "tokens";
  const Cursor augment = document.At("data.augment");
  const bool flips =
      augment.message->GetReflection()->GetBool(*augment.message, augment.Field("flip"));
  if (is_text && (flips || NumberOf(augment, augment.Field("crop_padding"), -1) > 0)) {
    return document.Error(augment, "'augment' is for images; '" + kind->name() + "' has none");
  }
  if (is_text || kind->name() == "cifar10") return Require(document, block, "path");
  if (kind->name() != "mnist") return {};
  ENGINE_RETURN_IF_ERROR(Require(document, block, "images"));
  ENGINE_RETURN_IF_ERROR(Require(document, block, "labels"));
  const bool images = block.Has(block.Field("eval_images"));
  if (images == block.Has(block.Field("eval_labels"))) return {};
  return document.Error(block, block.Field(images ? "eval_images" : "eval_labels"), -1,
                        "'eval_images' and 'eval_labels' go together");
}

Status CheckGroups(const Document& document, const Cursor& train) {
  const auto* field = train.Field("group");
  std::vector<std::string> prefixes;
  for (int i = 0; i < train.Size(field); ++i) {
    const Cursor group = document.Child(train, field, i);
    ENGINE_RETURN_IF_ERROR(Require(document, group, "parameters"));
    const auto* key = group.Field("parameters");
    prefixes.push_back(group.message->GetReflection()->GetString(*group.message, key));
    if (std::find(prefixes.begin(), prefixes.end() - 1, prefixes.back()) != prefixes.end() - 1) {
      return document.Error(group, key, -1,
                            "two groups are for '" + prefixes.back() + "'; make one of them");
    }
    ENGINE_RETURN_IF_ERROR(CheckScales(document, group));
  }
  return {};
}

Status CheckTrain(const Document& document) {
  const Cursor train = document.At("train"), output = document.At("output");
  ENGINE_RETURN_IF_ERROR(CheckGroups(document, train));
  ENGINE_RETURN_IF_ERROR(CheckOneOf(document, train, {"steps", "epochs", "tokens"}));
  ENGINE_RETURN_IF_ERROR(CheckOneOf(document, train, {"global_batch", "batch_per_rank"}));
  if (output.Has(output.Field("checkpoint"))) return {};
  const auto needs_file = [&](const Cursor& block, const char* key) {
    return document.Error(block, block.Field(key), -1,
                          std::string("'").append(key).append("' needs a file for the "
                                                              "checkpoints: 'output.checkpoint'"));
  };
  if (NumberOf(train, train.Field("checkpoint_every"), -1) > 0) {
    return needs_file(train, "checkpoint_every");
  }
  if (NumberOf(output, output.Field("keep_checkpoints"), -1) > 1) {
    return needs_file(output, "keep_checkpoints");
  }
  return {};
}

}  // namespace

Status CheckScales(const Document& document, const Cursor& block) {
  for (const char* key : {"learning_rate_scale", "weight_decay_scale"}) {
    const NumberRule rule{"", key, 0, kLargestScale};
    ENGINE_RETURN_IF_ERROR(CheckNumber(document, block, rule));
  }
  return {};
}

Status CheckDocument(const Document& document, const Schema& schema) {
  for (const char* block : {"model", "data", "train", "plugins"}) {
    const Cursor root = document.Root();
    if (root.Has(root.Field(block))) continue;
    return document.Error(root, std::string("the configuration needs '") + block + "'");
  }
  for (const NumberRule& rule : kNumberRules) {
    ENGINE_RETURN_IF_ERROR(CheckNumber(document, document.At(rule.block), rule));
  }
  ENGINE_RETURN_IF_ERROR(CheckModel(document, schema));
  ENGINE_RETURN_IF_ERROR(CheckData(document));
  return CheckTrain(document);
}

}  // namespace engine
