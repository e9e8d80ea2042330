// Protobuf's errors of parsing in the words of our users.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "app/config/source_text.h"
#include "engine/status.h"

namespace engine::config {

struct TranslatedError {
  size_t offset = 0;  // of the word that is wrong
  Status status;
};

// `message` and `offset` are Protobuf's, whose place is often the token after the one that is
// wrong; `root` is the type that was parsed. Messages of unknown form are passed on as they are.
TranslatedError TranslateParseError(const SourceText& source, size_t offset,
                                    const std::string& message,
                                    const google::protobuf::Descriptor& root);

std::vector<std::string> KeysOf(const google::protobuf::Descriptor& block);
// "unknown key 'stepps' in 'train'; did you mean 'steps'?"
std::string UnknownKey(const std::string& key, const google::protobuf::Descriptor& block);

// "'COS' is none of CONSTANT, COSINE"
std::string NoSuchWord(const std::string& word, const google::protobuf::EnumDescriptor& type);

}  // namespace engine::config
