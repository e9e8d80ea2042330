#include "app/config/parse_error.h"

#include <cctype>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "app/config/engine.pb.h"
#include "app/plugins/words.h"

namespace engine::config {
namespace {

namespace pb = google::protobuf;

// The texts between `literals`, if `message` consists of them in this order.
std::optional<std::vector<std::string>> Match(std::string_view message,
                                              std::initializer_list<std::string_view> literals) {
  std::vector<std::string> captured;
  size_t at = 0;
  for (const std::string_view literal : literals) {
    const size_t found = message.find(literal, at);
    if (found == std::string_view::npos || (at == 0 && found != 0)) return std::nullopt;
    if (at > 0) captured.emplace_back(message.substr(at, found - at));
    at = found + literal.size();
  }
  captured.emplace_back(message.substr(at));
  return captured;
}

template <typename Predicate>
const pb::FieldDescriptor* FindField(const pb::FileDescriptor& file, Predicate matches) {
  for (int i = 0; i < file.message_type_count(); ++i) {
    for (int j = 0; j < file.message_type(i)->field_count(); ++j) {
      const pb::FieldDescriptor* field = file.message_type(i)->field(j);
      if (matches(*field)) return field;
    }
  }
  return nullptr;
}

struct Translated {
  std::string sentence;
  std::string word;  // the word before the place that Protobuf reports; empty: that place
};

std::optional<Translated> TranslateKey(const std::string& message, const pb::Descriptor& root) {
  if (auto match = Match(message, {"Message type \"", "\" has no field named \"", "\"."})) {
    const std::string& key = (*match)[1];
    const pb::Descriptor* block = root.file()->pool()->FindMessageTypeByName((*match)[0]);
    return Translated{UnknownKey(key, block ? *block : root), key};
  }
  if (auto match = Match(message, {"Non-repeated field \"", "\" is specified multiple times."})) {
    return Translated{"'" + (*match)[0] + "' is given twice", (*match)[0]};
  }
  if (auto match = Match(message, {"Field \"", "\" is specified along with field \"", "\", "})) {
    return Translated{
        "'" + (*match)[0] + "' and '" + (*match)[1] + "' exclude each other; keep one",
        (*match)[0]};
  }
  if (Match(message, {"Message is too deep"})) {
    return Translated{"blocks are nested too deeply", ""};
  }
  return std::nullopt;
}

std::optional<Translated> TranslateValue(const std::string& message, const pb::Descriptor& root) {
  if (auto match = Match(message, {"Unknown enumeration value of \"", "\" for field \"", "\"."})) {
    const auto* field = FindField(*root.file(), [&](const pb::FieldDescriptor& candidate) {
      return candidate.name() == (*match)[1] && candidate.enum_type() != nullptr;
    });
    if (field == nullptr) return std::nullopt;
    return Translated{NoSuchWord((*match)[0], *field->enum_type()), (*match)[0]};
  }
  if (auto match = Match(message, {"Invalid value for boolean field \"", "\". Value: \"", "\"."})) {
    return Translated{"'" + (*match)[0] + "' is true or false, not '" + (*match)[1] + "'",
                      (*match)[1]};
  }
  if (auto match = Match(message, {"Integer out of range (", ")"})) {
    return Translated{(*match)[0] + " is out of range", ""};
  }
  if (auto match = Match(message, {"Expected string, got: "})) {
    return Translated{"expected text in quotes, found " + (*match)[0], ""};
  }
  for (const char* type : {"integer", "double", "identifier"}) {
    if (auto match = Match(message, {std::string("Expected ") + type + ", got: "})) {
      const bool end = (*match)[0].empty();
      const std::string what = type == std::string_view("integer")  ? "an integer"
                               : type == std::string_view("double") ? "a number"
                                                                    : "a key or a word";
      return Translated{"expected " + what + ", found " + (end ? "the end" : (*match)[0]), ""};
    }
  }
  return std::nullopt;
}

// Protobuf's own sentence without capital letter and full stop.
std::string Plain(std::string message) {
  if (!message.empty()) message[0] = static_cast<char>(std::tolower(message[0]));
  if (message.ends_with('.')) message.pop_back();
  return message;
}

}  // namespace

TranslatedError TranslateParseError(const SourceText& source, size_t offset,
                                    const std::string& message, const pb::Descriptor& root) {
  auto translated = TranslateKey(message, root);
  if (!translated) translated = TranslateValue(message, root);
  if (!translated) translated = Translated{Plain(message), ""};
  const size_t place = source.LastBefore(translated->word, offset);
  return {place, source.Error(StatusCode::kConfig, place, translated->sentence)};
}

std::vector<std::string> KeysOf(const pb::Descriptor& block) {
  std::vector<std::string> keys;
  for (int i = 0; i < block.field_count(); ++i) keys.push_back(block.field(i)->name());
  return keys;
}

std::string UnknownKey(const std::string& key, const pb::Descriptor& block) {
  const std::vector<std::string> keys = KeysOf(block);
  std::string hint = plugins::DidYouMean(key, keys);
  if (block.name() == proto::Config::descriptor()->name()) {
    return "unknown key '" + key + "'" +
           (hint.empty() ? ": neither a key of the configuration nor a plugin that was found"
                         : hint);
  }
  if (block.name() == proto::Layer::descriptor()->name()) {
    return "unknown key '" + key + "' in 'layer'" +
           (hint.empty() ? ": neither a key of a layer nor an op of a plugin that was found"
                         : hint);
  }
  const auto* field = FindField(*block.file(), [&block](const pb::FieldDescriptor& candidate) {
    return candidate.message_type() == &block;
  });
  const pb::FieldDescriptor* layer = block.FindFieldByName("layer");
  if (layer != nullptr && layer->message_type() != nullptr &&
      layer->message_type()->FindFieldByName(key) != nullptr) {
    hint = "; put it into a layer: layer { " + key + " {} }";
  }
  // Keys of the engine's own that a plugin might have.
  const pb::Descriptor& root = *proto::Config::descriptor();
  for (int i = 0; i < root.field_count() && hint.empty(); ++i) {
    const pb::Descriptor* other = root.field(i)->message_type();
    if (other == nullptr || other->FindFieldByName(key) == nullptr) continue;
    hint = "; did you mean '" + root.field(i)->name() + "." + key + "'?";
  }
  return "unknown key '" + key + "' in '" + (field ? field->name() : block.name()) + "'" +
         (!hint.empty()  ? hint
          : keys.empty() ? ", which has no keys"
                         : "; it has: " + plugins::Join(keys));
}

std::string NoSuchWord(const std::string& word, const pb::EnumDescriptor& type) {
  std::vector<std::string> words;
  for (int i = 0; i < type.value_count(); ++i) words.push_back(type.value(i)->name());
  return "'" + word + "' is none of " + plugins::Join(words);
}

}  // namespace engine::config
