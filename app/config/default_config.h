// The run of `engine run` without a file.
#pragma once

#include <string_view>

namespace engine::config {

// configs/gpt_text.pbtxt: trains on the text in the current directory, without download or GPU.
std::string_view DefaultConfigText();

// Its name in messages.
constexpr const char* kDefaultConfigOrigin = "built-in default";

}  // namespace engine::config
