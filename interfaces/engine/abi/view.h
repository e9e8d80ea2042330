// Text, numbers and lists as they cross the plugin boundary: plain structs with one layout for
// every compiler, standard library and language. They convert to and from what the standard library
// has.
//
// All of them borrow: an argument is valid during the call, what is returned as long as the
// function says. None of them frees anything, and who keeps what they show copies it. Empty ones
// may have a null pointer. Indices are not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>

namespace engine {

// Borrowed text, UTF-8, not terminated: print it with "%.*s", and never pass data() to a function
// that looks for a NUL.
struct TextView {
  const char* text = nullptr;
  uint64_t length = 0;  // bytes

  constexpr TextView() noexcept = default;
  // Of std::string, std::string_view or a literal, but not of a null pointer.
  template <typename T>
  requires std::is_convertible_v<const T&, std::string_view>
  constexpr TextView(const T& value) noexcept {  // NOLINT(google-explicit-constructor)
    const std::string_view view = value;
    text = view.data();
    length = view.size();
  }
  constexpr operator std::string_view() const noexcept {  // NOLINT(google-explicit-constructor)
    return {text, length};
  }
  constexpr const char* data() const noexcept { return text; }
  constexpr size_t size() const noexcept { return length; }
  constexpr bool empty() const noexcept { return length == 0; }
  friend constexpr bool operator==(TextView a, std::string_view b) noexcept {
    return std::string_view(a) == b;
  }
};

// Borrowed numbers or pointers, one after the other: they cannot grow, so a Span needs no stride.
// For structs there is Array.
template <typename T>
struct Span {
  T* values = nullptr;
  uint64_t count = 0;

  constexpr Span() noexcept = default;
  // Of a vector, an array, a std::span: whatever lies in one piece. It must outlive the call.
  constexpr Span(T* data, size_t size) noexcept : values(data), count(size) {}
  template <typename R>
  requires(
      !std::is_same_v<std::remove_cvref_t<R>, Span> &&
      std::is_convertible_v<
          R&&, std::span<
                   T>>) constexpr Span(R&& range) noexcept {  // NOLINT(google-explicit-constructor)
    const std::span<T> span = range;
    values = span.data();
    count = span.size();
  }
  constexpr T* data() const noexcept { return values; }
  constexpr size_t size() const noexcept { return count; }
  constexpr bool empty() const noexcept { return count == 0; }
  constexpr T* begin() const noexcept { return values; }
  constexpr T* end() const noexcept { return values + count; }
  constexpr T& operator[](size_t i) const noexcept { return values[i]; }
  constexpr T& back() const noexcept { return values[count - 1]; }
};

// Borrowed structs of ours. An element takes `stride` bytes, which is more than this library knows
// of where the other side was built with newer headers. So elements are reached by [] or an
// iterator, never by arithmetic on `elements`, and there is no conversion to std::span.
template <typename T>
struct Array {
  // Holds the array itself, so it outlives the Array that it was taken from.
  class Iterator {
   public:
    using value_type = std::remove_const_t<T>;
    using difference_type = std::ptrdiff_t;
    constexpr Iterator() noexcept = default;
    constexpr Iterator(const Array* array, size_t index) noexcept : array_(*array), index_(index) {}
    constexpr T& operator*() const noexcept { return array_[index_]; }
    constexpr T* operator->() const noexcept { return &array_[index_]; }
    constexpr Iterator& operator++() noexcept { return ++index_, *this; }
    constexpr Iterator operator++(int) noexcept {
      Iterator before = *this;
      ++index_;
      return before;
    }
    constexpr bool operator==(const Iterator& other) const noexcept {
      return index_ == other.index_;
    }

   private:
    Array array_;
    size_t index_ = 0;
  };

  T* elements = nullptr;
  uint32_t count = 0;
  uint32_t stride = 0;  // bytes from one element to the next, as whoever made the array has T

  constexpr Array() noexcept = default;
  // Of structs of this side, whose stride is the size that they have here.
  template <typename R>
  requires(
      !std::is_same_v<std::remove_cvref_t<R>, Array> &&
      std::is_convertible_v<
          R&&,
          std::span<
              T>>) constexpr Array(R&& range) noexcept {  // NOLINT(google-explicit-constructor)
    const std::span<T> span = range;
    *this = Array(span.data(), span.size());
  }
  constexpr Array(T* data, size_t size) noexcept
      : elements(data), count(static_cast<uint32_t>(size)), stride(sizeof(T)) {}

  constexpr size_t size() const noexcept { return count; }
  constexpr bool empty() const noexcept { return count == 0; }
  constexpr T& operator[](size_t i) const noexcept {
    if (std::is_constant_evaluated()) return elements[i];  // a compiler has one size only
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return *reinterpret_cast<T*>(reinterpret_cast<Byte*>(elements) + i * stride);
  }
  constexpr T& front() const noexcept { return *elements; }
  constexpr T& back() const noexcept { return (*this)[count - 1]; }
  constexpr Iterator begin() const noexcept { return {this, 0}; }
  constexpr Iterator end() const noexcept { return {this, count}; }
  // Elements from `begin` on, at most `size`.
  constexpr Array subspan(size_t begin, size_t size = SIZE_MAX) const noexcept {
    Array part = *this;
    part.elements = begin < count ? &(*this)[begin] : nullptr;
    part.count =
        begin < count ? static_cast<uint32_t>(size < count - begin ? size : count - begin) : 0;
    return part;
  }
};

}  // namespace engine

// An iterator of a Span outlives the Span, as that of a std::span does.
template <typename T>
constexpr bool std::ranges::enable_borrowed_range<engine::Span<T>> = true;
