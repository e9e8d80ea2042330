// The style of a report page.
#pragma once

#include <string_view>

namespace engine::bench {

// The file page_head.html: everything of a page before its body.
std::string_view PageHead();

}  // namespace engine::bench
