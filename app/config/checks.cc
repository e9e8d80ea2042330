#include "app/config/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "app/config/engine.pb.h"
#include "app/plugins/words.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

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

std::string Bounds(const proto::Range& range) {
  std::string text =
      range.has_above() ? "above " + Text(range.above()) : "at least " + Text(range.least());
  if (range.has_most()) return text + " and at most " + Text(range.most());
  return text + (std::isinf(range.below()) ? " and finite" : " and below " + Text(range.below()));
}

Status CheckNumber(const Document& document, const Cursor& block, const pb::FieldDescriptor* field,
                   const proto::Range& range) {
  const int count = field->is_repeated() ? block.Size(field) : block.Has(field);
  for (int i = 0; i < count; ++i) {
    const int index = field->is_repeated() ? i : -1;
    const double number = NumberOf(block, field, index);
    // Written so that NaN fails.
    const bool high_enough = range.has_above() ? number > range.above() : number >= range.least();
    const bool low_enough = range.has_most() ? number <= range.most() : number < range.below();
    if (high_enough && low_enough) continue;
    return document.Error(
        block, field, index,
        "'" + field->name() + "' is " + Text(number) + " and must be " + Bounds(range));
  }
  return {};
}

// Every number that is set, by the range that engine.proto gives it.
void CheckNumbers(const Document& document, const Cursor& block, Problems* problems) {
  const pb::Descriptor* type = block.message->GetDescriptor();
  for (int f = 0; f < type->field_count(); ++f) {
    const pb::FieldDescriptor* field = type->field(f);
    if (field->options().HasExtension(proto::range)) {
      problems->Add(
          CheckNumber(document, block, field, field->options().GetExtension(proto::range)));
    }
    if (field->message_type() == nullptr || !block.Has(field)) continue;
    const int count = field->is_repeated() ? block.Size(field) : 1;
    for (int i = 0; i < count; ++i) {
      CheckNumbers(document, document.Child(block, field, field->is_repeated() ? i : -1), problems);
    }
  }
}

Status Require(const Document& document, const Cursor& block, const char* key) {
  if (block.Has(block.Field(key))) return {};
  return document.Error(block, "'" + block.path + "' needs '" + key + "'");
}

// Of keys that exclude each other one must be given.
Status CheckOneOfs(const Document& document, const Cursor& block) {
  const pb::Descriptor* type = block.message->GetDescriptor();
  for (int i = 0; i < type->oneof_decl_count(); ++i) {
    const pb::OneofDescriptor* keys = type->oneof_decl(i);
    if (block.message->GetReflection()->HasOneof(*block.message, keys)) continue;
    std::vector<std::string> names;
    for (int k = 0; k < keys->field_count(); ++k) names.push_back(keys->field(k)->name());
    return document.Error(block, "'" + block.path + "' needs one of: " + plugins::Join(names));
  }
  return {};
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
  }
  return {};
}

Status CheckPattern(const Document& document, const Cursor& block, const char* key, int index) {
  const auto* field = block.Field(key);
  const pb::Reflection& access = *block.message->GetReflection();
  try {
    const std::regex pattern(index < 0 ? access.GetString(*block.message, field)
                                       : access.GetRepeatedString(*block.message, field, index));
    return {};
  } catch (const std::regex_error& error) {
    return document.Error(
        block, field, index,
        std::string("'").append(key).append("' is no regular expression: ") + error.what());
  }
}

Status CheckInit(const Document& document, const Cursor& train) {
  const auto* rules = train.Field("init_map");
  for (int i = 0; i < train.Size(rules); ++i) {
    const Cursor rule = document.Child(train, rules, i);
    for (const char* key : {"from", "to"}) ENGINE_RETURN_IF_ERROR(Require(document, rule, key));
    ENGINE_RETURN_IF_ERROR(CheckPattern(document, rule, "from", -1));
  }
  for (int i = 0; i < train.Size(train.Field("init_allow_missing")); ++i) {
    ENGINE_RETURN_IF_ERROR(CheckPattern(document, train, "init_allow_missing", i));
  }
  return {};
}

// Points of one unit come one after the other, and no exponential begins or ends at 0.
Status CheckRate(const Document& document, const Cursor& train) {
  const Cursor rate = document.Child(train, train.Field("learning_rate"));
  const auto* points = rate.Field("point");
  std::map<std::string, double> last;  // unit -> place
  double factor = 0;
  for (int i = 0; i < rate.Size(points); ++i) {
    const Cursor point = document.Child(rate, points, i);
    ENGINE_RETURN_IF_ERROR(CheckOneOfs(document, point));
    const pb::Reflection& access = *point.message->GetReflection();
    const auto* at = access.GetOneofFieldDescriptor(
        *point.message, point.message->GetDescriptor()->FindOneofByName("at"));
    const double place = NumberOf(point, at, -1), before = factor;
    factor = NumberOf(point, point.Field("factor"), -1);
    const auto [earlier, is_first] = last.emplace(at->name(), place);
    if (!is_first && place < earlier->second) {
      return document.Error(
          point, at, -1,
          "points come in the order of time; one before this is at " + Text(earlier->second));
    }
    earlier->second = place;
    const auto* curve = point.Field("curve");
    if (access.GetEnum(*point.message, curve)->name() == "EXPONENTIAL" && !(before * factor > 0)) {
      return document.Error(point, curve, -1, "an exponential needs factors above 0 at both ends");
    }
  }
  for (const char* key : {"schedule", "warmup_steps"}) {
    const auto* field = rate.Field(key);
    const bool is_used =
        field->enum_type() != nullptr
            ? rate.message->GetReflection()->GetEnumValue(*rate.message, field) != 0
            : NumberOf(rate, field, -1) != 0;
    if (rate.Size(points) == 0 || !is_used) continue;
    return document.Error(
        rate, field, -1,
        std::string("'").append(key).append("' is the short form of a curve; give it or points"));
  }
  return {};
}

// No two outputs in one file, which the later would replace.
Status CheckOutputs(const Document& document, const Cursor& output) {
  std::map<std::string, std::string> keys;  // by path
  for (const char* key : {"checkpoint", "best_checkpoint", "metrics", "trace"}) {
    const auto* field = output.Field(key);
    const std::filesystem::path path =
        output.message->GetReflection()->GetString(*output.message, field);
    const auto [other, is_new] = keys.emplace(path.lexically_normal(), key);
    if (path.empty() || is_new) continue;
    return document.Error(output, field, -1,
                          "'" + other->second + "' and '" + key + "' are one file: name two");
  }
  return {};
}

Status CheckTrain(const Document& document) {
  const Cursor train = document.At("train"), output = document.At("output");
  ENGINE_RETURN_IF_ERROR(CheckGroups(document, train));
  ENGINE_RETURN_IF_ERROR(CheckInit(document, train));
  ENGINE_RETURN_IF_ERROR(CheckOneOfs(document, train));
  ENGINE_RETURN_IF_ERROR(CheckRate(document, train));
  ENGINE_RETURN_IF_ERROR(CheckOutputs(document, output));
  const Cursor stopping = document.Child(train, train.Field("early_stopping"));
  const bool ends = NumberOf(stopping, stopping.Field("patience"), -1) > 0;
  if (ends && NumberOf(train, train.Field("evaluate_every"), -1) <= 0) {
    return document.Error(stopping, stopping.Field("patience"), -1,
                          "'patience' counts evaluations, and there are none during the run: set "
                          "'train.evaluate_every'");
  }
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

void CheckDocument(const Document& document, Problems* problems) {
  CheckNumbers(document, document.Root(), problems);
  if (problems->left_out()) return;  // perhaps what is missing
  for (const char* block : {"model", "data", "train", "plugins"}) {
    const Cursor root = document.Root();
    if (root.Has(root.Field(block))) continue;
    problems->Add(document.Error(root, std::string("the configuration needs '") + block + "'"));
  }
  for (const char* block : {"model", "data"}) {
    const Cursor root = document.Root();
    if (root.Has(root.Field(block))) problems->Add(CheckOneOfs(document, document.At(block)));
  }
  if (document.Root().Has(document.Root().Field("train"))) problems->Add(CheckTrain(document));
}

}  // namespace engine::config
