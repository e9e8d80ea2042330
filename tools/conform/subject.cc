#include "tools/conform/subject.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace engine::conform {
namespace {

std::optional<Subject>& Kept() {
  static std::optional<Subject> kept;
  return kept;
}

}  // namespace

const Subject& UnderTest() {
  return *Kept();
}

bool HasSubject() {
  return Kept().has_value();
}

void SetSubject(Subject subject) {
  Kept() = std::move(subject);
}

const PluginUnderTest* Subject::Other(PluginKind kind) const {
  const auto found = std::ranges::find_if(
      others, [kind](const PluginUnderTest& other) { return other.file().kind == kind; });
  return found == others.end() ? nullptr : &*found;
}

}  // namespace engine::conform
