// The layout of what crosses the plugin boundary as one number, computed by the compiler of each
// side: names, offsets, sizes and kinds of the fields of every struct, and of the functions of
// every interface with what they take. Two sides that agree on the number agree on the bytes,
// whatever compiler, flags or standard library they were built with, and whatever text was in their
// headers.
//
//   layout := hash of (id, size, field*)                  of an interface: of its table of functions
//   field  := hash of (name, offset, kind of its type)
//   kind   := size and sort of a number; of a struct its fields; of a pointer what it points to; of a
//             function its result and arguments
//
// The values are in interfaces/abi.lock. What changes one of them changes the ABI
// (docs/plugin_abi.md); a comment, a default, an enumerator and the name of a type or an argument
// do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "engine/abi/view.h"

// ENGINE_EACH(m, a, b, c): m(a) m(b) m(c), for up to 24 words. Written out, since what is expanded
// again and again costs every file of a plugin a second to compile.
#define ENGINE_EACH(m, ...)                                                                      \
  ENGINE_PICK(__VA_ARGS__ __VA_OPT__(, ) 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, \
              10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)                                                  \
  (m __VA_OPT__(, ) __VA_ARGS__)
#define ENGINE_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, \
                    _18, _19, _20, _21, _22, _23, _24, count, ...)                              \
  ENGINE_EACH_##count
#define ENGINE_EACH_0(m)
#define ENGINE_EACH_1(m, a) m(a)
#define ENGINE_EACH_2(m, a, ...) m(a) ENGINE_EACH_1(m, __VA_ARGS__)
#define ENGINE_EACH_3(m, a, ...) m(a) ENGINE_EACH_2(m, __VA_ARGS__)
#define ENGINE_EACH_4(m, a, ...) m(a) ENGINE_EACH_3(m, __VA_ARGS__)
#define ENGINE_EACH_5(m, a, ...) m(a) ENGINE_EACH_4(m, __VA_ARGS__)
#define ENGINE_EACH_6(m, a, ...) m(a) ENGINE_EACH_5(m, __VA_ARGS__)
#define ENGINE_EACH_7(m, a, ...) m(a) ENGINE_EACH_6(m, __VA_ARGS__)
#define ENGINE_EACH_8(m, a, ...) m(a) ENGINE_EACH_7(m, __VA_ARGS__)
#define ENGINE_EACH_9(m, a, ...) m(a) ENGINE_EACH_8(m, __VA_ARGS__)
#define ENGINE_EACH_10(m, a, ...) m(a) ENGINE_EACH_9(m, __VA_ARGS__)
#define ENGINE_EACH_11(m, a, ...) m(a) ENGINE_EACH_10(m, __VA_ARGS__)
#define ENGINE_EACH_12(m, a, ...) m(a) ENGINE_EACH_11(m, __VA_ARGS__)
#define ENGINE_EACH_13(m, a, ...) m(a) ENGINE_EACH_12(m, __VA_ARGS__)
#define ENGINE_EACH_14(m, a, ...) m(a) ENGINE_EACH_13(m, __VA_ARGS__)
#define ENGINE_EACH_15(m, a, ...) m(a) ENGINE_EACH_14(m, __VA_ARGS__)
#define ENGINE_EACH_16(m, a, ...) m(a) ENGINE_EACH_15(m, __VA_ARGS__)
#define ENGINE_EACH_17(m, a, ...) m(a) ENGINE_EACH_16(m, __VA_ARGS__)
#define ENGINE_EACH_18(m, a, ...) m(a) ENGINE_EACH_17(m, __VA_ARGS__)
#define ENGINE_EACH_19(m, a, ...) m(a) ENGINE_EACH_18(m, __VA_ARGS__)
#define ENGINE_EACH_20(m, a, ...) m(a) ENGINE_EACH_19(m, __VA_ARGS__)
#define ENGINE_EACH_21(m, a, ...) m(a) ENGINE_EACH_20(m, __VA_ARGS__)
#define ENGINE_EACH_22(m, a, ...) m(a) ENGINE_EACH_21(m, __VA_ARGS__)
#define ENGINE_EACH_23(m, a, ...) m(a) ENGINE_EACH_22(m, __VA_ARGS__)
#define ENGINE_EACH_24(m, a, ...) m(a) ENGINE_EACH_23(m, __VA_ARGS__)

// ENGINE_LAYOUT(Shape, dims, ndim); states all fields of a struct that crosses, in their order. It
// stands in namespace engine, behind the struct. A field that is forgotten does not compile, unless
// it lies where alignment would leave a hole anyway: name such holes (`reserved`), so that they
// cross with a value.
#define ENGINE_LAYOUT(Type, ...)                     \
  template <>                                        \
  struct Fields<Type> {                              \
    using Self = Type;                               \
    static constexpr std::string_view kName = #Type; \
    template <typename Visitor>                      \
    static constexpr void Visit(Visitor& visitor) {  \
      ENGINE_EACH(ENGINE_VISIT_FIELD, __VA_ARGS__)   \
    }                                                \
  };                                                 \
  static_assert(CoversAllOf<Type>(), #Type ": a field is not in its list")
#define ENGINE_VISIT_FIELD(field) \
  visitor.template Field<decltype(Self::field)>(#field, offsetof(Self, field));

namespace engine {

// Of a struct, made by ENGINE_LAYOUT: its name, and Visit, which calls visitor.Field<type>(name,
// offset) for each field.
template <typename T>
struct Fields;

// A struct of ours, for which there is an ENGINE_LAYOUT.
template <typename T>
concept HasFields = requires {
  Fields<T>::kName;
};

// A struct that says how much of it there is, so that it can grow: struct_size is its first field.
// Who makes one sets it to the size that its own headers have, which the default does.
template <typename T>
concept Sized = requires(T value) {
  value.struct_size;
};

class Interface;  // interface.h

namespace layout {

// `hash` with the 8 bytes of `value` behind it, lowest first, so on every machine the same.
constexpr uint64_t Mix(uint64_t hash, uint64_t value) noexcept {
  for (int i = 0; i < 8; ++i, value >>= 8)
    hash = (hash ^ (value & 0xff)) * 0x100000001b3u;  // FNV-1a
  return hash;
}
constexpr uint64_t Hash(std::string_view text) noexcept {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = Mix(hash, static_cast<unsigned char>(c));
  return hash;
}

// Where a field of this alignment lies that follows `size` bytes.
constexpr size_t RoundUp(size_t size, size_t alignment) noexcept {
  return (size + alignment - 1) / alignment * alignment;
}

// The hash of a type; a variable, so that a compiler computes it once. kDepth: how many more
// pointers it goes through.
template <typename T, int kDepth>
constexpr uint64_t Compute() noexcept;
template <typename T, int kDepth>
constexpr uint64_t kOf = Compute<std::remove_cv_t<T>, kDepth>();

// What a type is made of, without names of ours: a struct by its fields. Of a number: whether it is
// signed, unsigned, floating or an enum, its size and its alignment. Others are specialised below;
// a type of which this makes no sense (bool, a class) does not compile.
template <typename T>
struct Kind {
  template <int kDepth>
  static constexpr uint64_t Hash() noexcept {
    static_assert(!std::is_same_v<T, bool>, "bool has no fixed size: use uint32_t");
    static_assert(std::is_scalar_v<T> || std::is_void_v<T>, "state its fields with ENGINE_LAYOUT");
    if constexpr (std::is_void_v<T>) {
      return 'v';
    } else {
      const char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
      return Mix(std::is_enum_v<T> ? 'e' : kind, sizeof(T) * 256 + alignof(T));
    }
  }
};
// Only so deep: a struct may point to another of its kind.
template <typename T>
struct Kind<T*> {
  template <int kDepth>
  static constexpr uint64_t Hash() noexcept {
    if constexpr (kDepth > 0) return Mix('p' + sizeof(T*) * 256, kOf<T, kDepth - 1>);
    return 'p';
  }
};
// Of a function what it returns and takes, in order. Whether it is noexcept is no part of it: C has
// none.
template <typename R, typename... P>
struct Kind<R (*)(P...) noexcept> {
  template <int kDepth>
  static constexpr uint64_t Hash() noexcept {
    uint64_t hash = Mix('F', kOf<R, kDepth>);
    ((hash = Mix(hash, kOf<P, kDepth>)), ...);
    return hash;
  }
};
template <typename R, typename... P>
struct Kind<R (*)(P...)> : Kind<R (*)(P...) noexcept> {};
// Of a C array its length, so a list inside of a struct (OpSignature::outputs) cannot become
// longer.
template <typename T, size_t kSize>
struct Kind<T[kSize]> {
  template <int kDepth>
  static constexpr uint64_t Hash() noexcept {
    return Mix(Mix('a', kSize), kOf<T, kDepth>);
  }
};
// A view of numbers and one of structs are kinds of their own, by what they point to.
template <typename T>
struct Kind<Span<T>> {
  template <int kDepth>
  static constexpr uint64_t Hash() noexcept {
    return Mix('s' + sizeof(Span<T>) * 256, Kind<T*>::template Hash<kDepth>());
  }
};
template <typename T>
struct Kind<Array<T>> {
  template <int kDepth>
  static constexpr uint64_t Hash() noexcept {
    return Mix('r' + sizeof(Array<T>) * 256, Kind<T*>::template Hash<kDepth>());
  }
};

// Takes in the fields that Visit shows it.
template <int kDepth>
struct HashFields {
  uint64_t hash;
  template <typename F>
  constexpr void Field(std::string_view name, size_t offset) noexcept {
    hash = Mix(Mix(Mix(hash, Hash(name)), offset), kOf<F, kDepth>);
  }
};

// Of an interface its id and the functions of its table; of a struct its fields; of all else its
// Kind.
template <typename T, int kDepth>
constexpr uint64_t Compute() noexcept {
  if constexpr (std::is_base_of_v<Interface, T>) {
    return kOf<typename T::template FunctionTable<typename T::Base>, kDepth>;
  } else if constexpr (requires { T::kId; }) {
    HashFields<kDepth> fields{Mix(Hash(T::kId), sizeof(T))};
    T::Visit(fields);
    return fields.hash;
  } else if constexpr (HasFields<T>) {
    HashFields<kDepth> fields{Mix('S', sizeof(T) * 256 + alignof(T))};
    Fields<T>::Visit(fields);
    return fields.hash;
  } else {
    return Kind<T>::template Hash<kDepth>();
  }
}

// Whether each field begins where the one before it ends, but for alignment.
struct FindGaps {
  size_t end = 0;
  bool found = false;
  template <typename F>
  constexpr void Field(std::string_view, size_t offset) noexcept {
    found = found || offset != RoundUp(end, alignof(F));
    end = offset + sizeof(F);
  }
};

}  // namespace layout

// Whether ENGINE_LAYOUT names every field, and T may cross: a struct as C has them.
template <typename T>
constexpr bool CoversAllOf() noexcept {
  layout::FindGaps gaps;
  Fields<T>::Visit(gaps);
  return !gaps.found && layout::RoundUp(gaps.end, alignof(T)) == sizeof(T) &&
         std::is_standard_layout_v<T> && std::is_trivially_copyable_v<T>;
}

// Of a struct or of an interface. Through six pointers: an interface that is met deeper counts as a
// pointer to something.
template <typename T>
constexpr uint64_t kLayoutOf = layout::kOf<T, 6>;

ENGINE_LAYOUT(TextView, text, length);

}  // namespace engine
