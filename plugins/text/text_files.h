// The text that lies in a file or a folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace engine::text {

constexpr int64_t kMaxTextFileBytes = int64_t{16} << 20;  // of a file in a folder
constexpr int64_t kMaxTextBytes = int64_t{2} << 30;       // of everything together

// Valid UTF-8 without a NUL byte.
bool IsText(std::string_view content) noexcept;

// The contents of a file, whatever it holds, or of the text files below a folder, sorted by the
// bytes of their path. Left out in a folder: what begins with a dot, folders whose name begins with
// "build", symbolic links (they lead outside or to what is here anyway), files that are empty,
// larger than kMaxTextFileBytes or not text.
//
// kMissingInput, with the path, when something cannot be read; kBadData when there is no text or
// more than kMaxTextBytes.
Result<std::vector<std::string>> ReadTextFiles(const std::string& path);

}  // namespace engine::text
