// The style of report pages.
#pragma once

#include <string_view>

namespace engine::report {

// The file page_head.html: everything of a page before its body.
std::string_view PageHead();

}  // namespace engine::report
