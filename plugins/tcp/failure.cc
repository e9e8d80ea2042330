#include "failure.h"

#include <cstdio>
#include <exception>
#include <span>

namespace engine::tcp {
namespace {

constexpr int64_t kLookUpMs = 200;

Status ParseCause(int publisher, const std::string& text, const Status& fallback) {
  int code = 0, rank = -1, message = 0;
  if (std::sscanf(text.c_str(), "%d %d %n", &code, &rank, &message) != 2 || message == 0) {
    return fallback;
  }
  return Status::Error(static_cast<StatusCode>(code), "rank %d gave up: %s", publisher,
                       text.c_str() + message)
      .WithRank(rank);
}

}  // namespace

Failure::Failure(Host& host, std::string prefix, std::function<void()> stop)
    : host_(host), prefix_(std::move(prefix)), stop_(std::move(stop)) {}

Status Failure::reason() const noexcept {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void Failure::Raise(const Status& reason) noexcept {
  if (Set(reason)) stop_();
}

Status Failure::RaiseFound(const Status& error) noexcept {
  if (raised()) return reason();
  const Status cause = error.code() == StatusCode::kPeerLost ? RootCause(error) : error;
  if (Set(cause)) {
    Publish(cause);  // before the connections close, so that who sees that finds the cause
    stop_();
  }
  return reason();
}

bool Failure::Set(const Status& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (raised_.load(std::memory_order_relaxed)) return false;
  reason_ = reason;
  raised_.store(true, std::memory_order_release);
  return true;
}

void Failure::Publish(const Status& reason) noexcept {
  try {
    const std::string text = std::to_string(static_cast<int>(reason.code())) + ' ' +
                             std::to_string(reason.rank()) + ' ' + reason.message();
    const Status published =
        host_.StoreSet(Key(host_.rank_info().rank),
                       std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
    (void)published;  // best effort: without it the others blame this rank
  } catch (const std::exception&) {
    // No memory for the text: as above.
  }
}

Status Failure::RootCause(const Status& lost) noexcept {
  try {
    bool published = false;
    const std::string key = Key(lost.rank());
    if (!host_.StoreHas(key, &published).ok() || !published) return lost;
    std::string text;
    if (!host_.StoreGetString(key, kLookUpMs, &text).ok()) return lost;
    return ParseCause(lost.rank(), text, lost);
  } catch (const std::exception&) {
    return lost;
  }
}

std::string Failure::Key(int rank) const {
  return prefix_ + "/cause/" + std::to_string(rank);
}

}  // namespace engine::tcp
