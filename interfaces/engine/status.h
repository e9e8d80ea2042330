// Status and Result: the only error path of the engine and of its plugins. No exception crosses the
// plugin boundary, and every function of an interface that can fail returns a Status.
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

// Of which sort an error is. It decides the exit code of the run, and which error of several ranks
// is reported: kPeerLost and kAborted follow from another one and count as secondary. New codes
// come at the end.
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

// The text of an error, given back to the library that made it; `release` is null for one that
// lives for ever. Whoever owns the message calls `release` once, on any thread: it frees the text
// and this struct. The text is one sentence without newline, ends with NUL and does not change.
struct StatusMessage {
  uint64_t struct_size = sizeof(StatusMessage);
  const char* text = nullptr;
  void (*release)(StatusMessage* message) noexcept = nullptr;
};

// A Status as it crosses the plugin boundary: in two registers. Whoever gets it owns the message.
struct StatusValue {
  int32_t code = 0;                  // StatusCode; a number that is none counts as kPlugin
  int32_t rank = -1;                 // as Status::rank
  StatusMessage* message = nullptr;  // null: an empty text
};

// A code, the rank that caused it (or -1) and one sentence: what failed, on what, and what to do.
// Success costs nothing. A copy has a text of its own, made by the library that copies; one that is
// moved from is OK. Different threads may read one Status; who changes it needs it alone.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  // Takes over what crossed, and frees its message some time.
  explicit Status(StatusValue value) noexcept : value_(value) {}
  ~Status() {
    if (value_.message && value_.message->release) value_.message->release(value_.message);
  }
  Status(const Status& other) noexcept
      : value_(other.value_.message ? Make(other.code(), strdup(other.message())) : StatusValue{}) {
    value_.code = other.value_.code;
    value_.rank = other.value_.rank;
  }
  Status(Status&& other) noexcept : value_(other.Release()) {}
  Status& operator=(Status other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  // For the other side, which owns it from now on.
  StatusValue Release() noexcept { return std::exchange(value_, {}); }
  operator StatusValue() && noexcept { return Release(); }  // NOLINT(google-explicit-constructor)
  operator StatusValue() const& noexcept {                  // NOLINT(google-explicit-constructor)
    return Status(*this).Release();
  }

  // printf-style; never fails (an empty message when memory is out). Of kOk it makes kInternal, so
  // what is made here is always an error.
  __attribute__((format(printf, 2, 3))) static Status Error(StatusCode code, const char* format,
                                                            ...) noexcept {
    va_list args;
    va_start(args, format);
    char* const text = Format(format, args);
    va_end(args);
    return Status(Make(code, text));
  }

  // The same error with "context: " in front of its message, and of the same rank; OK stays OK. The
  // engine puts the plugin's name in front: say the file, key or layer, not who you are.
  __attribute__((format(printf, 2, 3))) Status WithContext(const char* format, ...) const noexcept {
    if (ok()) return {};
    va_list args;
    va_start(args, format);
    char* context = Format(format, args);
    va_end(args);
    const Status status = Error(code(), "%s: %s", context ? context : "", message());
    std::free(context);
    return status.WithRank(rank());
  }

  // The same error, of which `rank` is the cause: see rank().
  Status WithRank(int32_t rank) const noexcept {
    Status status = *this;
    status.value_.rank = rank;
    return status;
  }

  bool ok() const noexcept { return value_.code == 0; }
  StatusCode code() const noexcept { return StatusCode{value_.code}; }
  // The rank of the run that the error comes from, ServerId(index) (host.h) for a server, -1:
  // nobody's.
  int32_t rank() const noexcept { return value_.rank; }
  // Never null; valid until this Status is changed or gone.
  const char* message() const noexcept {
    return value_.message && value_.message->text ? value_.message->text : "";
  }

 private:
  // Owns `text`, which was malloc'ed. One allocation failed: the code alone. An error is never OK.
  static StatusValue Make(StatusCode code, char* text) noexcept {
    StatusValue value{static_cast<int32_t>(code == StatusCode::kOk ? StatusCode::kInternal : code)};
    const auto release = [](StatusMessage* message) noexcept {
      std::free(const_cast<char*>(message->text));
      delete message;
    };
    value.message =
        text ? new (std::nothrow) StatusMessage{.text = text, .release = release} : nullptr;
    if (!value.message) std::free(text);
    return value;
  }
  static char* Format(const char* format, va_list args) noexcept {
    char* text = nullptr;
    return vasprintf(&text, format, args) < 0 ? nullptr : text;
  }

  StatusValue value_;
};

// A value or the reason why there is none. For use inside one library; it does not cross the
// boundary. Look at ok() first: `*result` of one that is not ok is undefined. Never make one of a
// Status that is OK: it would have neither a value nor an error.
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

// Hands an error of `expression`, a Status, to the caller of a function that returns a Status or a
// Result; `expression` is evaluated once.
#define ENGINE_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::engine::Status engine_status = (expression); \
    if (!engine_status.ok()) return engine_status; \
  } while (false)

// ENGINE_ASSIGN_OR_RETURN(auto x, Make()); the same of a Result, whose value is moved into x. It is
// several statements: within an `if` it needs braces.
#define ENGINE_ASSIGN_OR_RETURN(lhs, expression) \
  ENGINE_ASSIGN_OR_RETURN_INNER(ENGINE_CONCAT(engine_result_, __LINE__), lhs, expression)
#define ENGINE_ASSIGN_OR_RETURN_INNER(result, lhs, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.status();                    \
  lhs = std::move(*result)

// A broken invariant: a bug, not an input. Prints and aborts, also in release builds. What a file,
// an option or a peer can cause is a Status instead: an abort in a plugin ends the rank as a crash
// does.
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
