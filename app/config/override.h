// `--set key=value`.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "engine/status.h"

namespace engine::config {

// Sets "train.learning_rate.base=0.01" in `root` and returns its key. A repeated key is replaced by
// the values between commas. Strings need no quotes, words of an enum may be in small letters. Of
// keys that exclude each other (the kinds of a model; steps, epochs and tokens; global_batch and
// batch_per_rank) the others are cleared. kConfig with a clause, and the nearest right name.
Result<std::string> ApplyOverride(const std::string& argument, google::protobuf::Message* root);

}  // namespace engine::config
