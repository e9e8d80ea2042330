// The ops of an op library as a table: a name of each, and what makes it.
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <string_view>
#include <type_traits>

#include "engine/op.h"
#include "engine/options.h"
#include "engine/plugin.h"
#include "engine/status.h"

namespace engine::kit {

// Makes an op of a library that gives each a `Context`; null when memory is out.
template <typename Context>
using OpFactory = Op* (*)(const Context& context, const Options& attributes) noexcept;

// A factory of ops of class T, which may do without attributes.
template <typename T, typename Context>
Op* NewOp(const Context& context, [[maybe_unused]] const Options& attributes) noexcept {
  if constexpr (std::is_constructible_v<T, const Context&, const Options&>) {
    return new (std::nothrow) T(context, attributes);
  } else {
    return new (std::nothrow) T(context);
  }
}

// The table is read without running any code, so it names factories of other files by address.
template <typename Context>
struct OpEntry {
  OpName name;
  const OpFactory<Context>* make;
};

// For the descriptor.
template <typename Context, size_t kCount>
constexpr std::array<OpName, kCount> NamesOf(const OpEntry<Context> (&table)[kCount]) noexcept {
  std::array<OpName, kCount> names;
  for (size_t i = 0; i < kCount; ++i) names[i] = table[i].name;
  return names;
}

// OpLibrary::CreateOp of plugin `library`. The op's name, of static lifetime, is that of `context`.
template <typename Context, size_t kCount>
Status CreateOp(const char* library, const OpEntry<Context> (&table)[kCount], std::string_view name,
                Context context, const Options& attributes, Op** out) noexcept {
  for (const OpEntry<Context>& entry : table) {
    if (entry.name.view() != name) continue;
    context.name = entry.name.text;
    *out = (*entry.make)(context, attributes);
    if (*out != nullptr) return {};
    return Status::Error(StatusCode::kResourceExhausted, "no memory for an op '%s'", context.name);
  }
  return Status::Error(StatusCode::kInvalidArgument, "%s has no op '%.*s'", library,
                       static_cast<int>(name.size()), name.data());
}

}  // namespace engine::kit
