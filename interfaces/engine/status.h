// Status and Result: the only error path of the engine and of its plugins.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace engine {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument,    // the caller broke the contract of the function
  kUnsupported,        // a valid request that this implementation does not offer
  kConfig,             // the user's configuration is wrong
  kPlugin,             // a plugin is unusable or broke its contract
  kBadData,            // an input file has wrong content
  kMissingInput,       // an input file does not exist or cannot be read
  kPeerLost,           // another rank died or closed its connection
  kRendezvous,         // the ranks did not find each other in time
  kTimeout,            // a deadline passed
  kAborted,            // stopped because something else failed first
  kStorage,            // an output could not be written
  kResourceExhausted,  // memory, descriptors, ...
  kDevice,             // an accelerator failed
  kInterrupted,        // the user asked to stop; of a plugin it counts as kPlugin, as does
  kInternal,           // a bug of ours
};

// A code, the rank that caused it (or -1) and one sentence: what failed, on what, and what to do.
// Success costs nothing. The message is malloc'ed, so it may be freed on either side of a plugin
// boundary.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  ~Status() { std::free(message_); }
  Status(const Status& other) noexcept
      : code_(other.code_),
        rank_(other.rank_),
        message_(other.message_ ? strdup(other.message_) : nullptr) {}
  Status(Status&& other) noexcept
      : code_(other.code_), rank_(other.rank_), message_(std::exchange(other.message_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    code_ = other.code_;
    rank_ = other.rank_;
    std::swap(message_, other.message_);
    return *this;
  }

  // printf-style; never fails (an empty message when memory is out).
  __attribute__((format(printf, 2, 3))) static Status Error(StatusCode code, const char* format,
                                                            ...) noexcept {
    va_list args;
    va_start(args, format);
    Status status(code, Format(format, args));
    va_end(args);
    return status;
  }

  // The same error with "context: " in front of its message; OK stays OK.
  __attribute__((format(printf, 2, 3))) Status WithContext(const char* format, ...) const noexcept {
    if (ok()) return {};
    va_list args;
    va_start(args, format);
    char* context = Format(format, args);
    va_end(args);
    Status status = Error(code_, "%s: %s", context ? context : "", message());
    std::free(context);
    status.rank_ = rank_;
    return status;
  }

  // The same error, blamed on `rank`.
  Status WithRank(int32_t rank) const noexcept {
    Status status = *this;
    status.rank_ = rank;
    return status;
  }

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  int32_t rank() const noexcept { return rank_; }
  const char* message() const noexcept { return message_ ? message_ : ""; }

 private:
  Status(StatusCode code, char* message) noexcept : code_(code), message_(message) {}
  static char* Format(const char* format, va_list args) noexcept {
    char* text = nullptr;
    return vasprintf(&text, format, args) < 0 ? nullptr : text;
  }

  StatusCode code_ = StatusCode::kOk;
  int32_t rank_ = -1;
  char* message_ = nullptr;
};

// A value or the reason why there is none. For use inside one library; it does not cross the
// boundary.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) noexcept
      : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace engine

#define ENGINE_CONCAT_INNER(a, b) a##b
#define ENGINE_CONCAT(a, b) ENGINE_CONCAT_INNER(a, b)

#define ENGINE_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::engine::Status engine_status = (expression); \
    if (!engine_status.ok()) return engine_status; \
  } while (false)

// ENGINE_ASSIGN_OR_RETURN(auto x, Make());
#define ENGINE_ASSIGN_OR_RETURN(lhs, expression) \
  ENGINE_ASSIGN_OR_RETURN_INNER(ENGINE_CONCAT(engine_result_, __LINE__), lhs, expression)
#define ENGINE_ASSIGN_OR_RETURN_INNER(result, lhs, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.status();                    \
  lhs = std::move(*result)

// A broken invariant: a bug, not an input. Prints and aborts, also in release builds.
#define ENGINE_CHECK(condition, ...)                                                     \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "engine: broken invariant at %s:%d: %s ", __FILE__, __LINE__, \
                   #condition);                                                          \
      __VA_OPT__(std::fprintf(stderr, __VA_ARGS__);)                                     \
      std::fputc('\n', stderr);                                                          \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
