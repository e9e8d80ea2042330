#include "roll_call.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "clock.h"

namespace engine::nccl {
namespace {

constexpr int64_t kAnswerMs = 1000;  // several times Pipeline's kLookMs
constexpr int64_t kLookUpMs = 200;

// What the rank that errors call `publisher` wrote as its end.
Status ParseEnd(int publisher, const std::string& text) {
  if (text.empty()) {
    return Status::Error(StatusCode::kPeerLost, "rank %d left the run", publisher)
        .WithRank(publisher);
  }
  int code = 0, blamed = -1, message = 0;
  if (std::sscanf(text.c_str(), "%d %d %n", &code, &blamed, &message) != 2 || message == 0) {
    return Status::Error(StatusCode::kPeerLost, "rank %d failed", publisher).WithRank(publisher);
  }
  return Status::Error(static_cast<StatusCode>(code), "rank %d gave up: %s", publisher,
                       text.c_str() + message)
      .WithRank(blamed);
}

}  // namespace

struct RollCall::Answers {
  std::vector<bool> present;
  std::vector<uint64_t> submitted;
};

RollCall::RollCall(Host& host, Members members, const Failure& failure)
    : host_(host), members_(std::move(members)), failure_(failure) {}

Status RollCall::Look(uint64_t submitted) noexcept {
  if (members_.size() == 1) return {};
  try {
    if (!Has(members_.prefix + "/roll")) return {};
    if (!answered_) Answer(submitted);
    return OthersFailure();
  } catch (const std::exception&) {
    return {};  // no memory for a key: next time
  }
}

void RollCall::Answer(uint64_t submitted) {
  const Status told =
      Set(members_.prefix + "/count/" + std::to_string(members_.rank), std::to_string(submitted));
  answered_ = told.ok();
}

Status RollCall::OthersFailure() {
  std::string rank, end;
  if (!Has(members_.prefix + "/failed") || !Get(members_.prefix + "/failed", &rank)) return {};
  const int publisher = std::atoi(rank.c_str());
  if (publisher == members_.rank) return {};
  if (!Get(members_.prefix + "/end/" + std::to_string(publisher), &end)) return {};
  heard_ = true;
  const bool known = publisher >= 0 && publisher < members_.size();
  return ParseEnd(known ? members_.names[static_cast<size_t>(publisher)] : publisher, end);
}

// Asks everybody and waits for the answers, until all are here or somebody's failure is.
RollCall::Answers RollCall::Call(uint64_t submitted) {
  const auto size = static_cast<size_t>(members_.size());
  Answers answers{std::vector<bool>(size), std::vector<uint64_t>(size)};
  Answer(submitted);
  (void)Set(members_.prefix + "/roll", "");
  answers.present[static_cast<size_t>(members_.rank)] = true;
  answers.submitted[static_cast<size_t>(members_.rank)] = submitted;
  const Clock::time_point deadline = DeadlineIn(kAnswerMs);
  for (size_t missing = size - 1; missing > 0 && Clock::now() < deadline && !failure_.raised();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (size_t other = 0; other < size; ++other) {
      const std::string key = members_.prefix + "/count/" + std::to_string(other);
      std::string text;
      if (answers.present[other] || !Has(key) || !Get(key, &text)) continue;
      answers.present[other] = true;
      answers.submitted[other] = std::strtoull(text.c_str(), nullptr, 10);
      --missing;
    }
  }
  return answers;
}

Status RollCall::Investigate(const Status& error, uint64_t submitted,
                             uint64_t waiting_for) noexcept {
  if (members_.size() == 1) return error;
  try {
    const Answers answers = Call(submitted);
    const Status earlier = OthersFailure();
    if (!earlier.ok()) return earlier;
    const auto size = static_cast<size_t>(members_.size());
    for (size_t rank = 0; rank < size; ++rank) {
      if (answers.present[rank]) continue;
      const int32_t name = members_.names[rank];
      return Status::Error(error.code(), "%s: rank %d does not answer", error.message(), name)
          .WithRank(name);
    }
    if (error.code() != StatusCode::kTimeout) return error;
    for (size_t rank = 0; rank < size; ++rank) {
      if (answers.submitted[rank] >= waiting_for) continue;
      const int32_t name = members_.names[rank];
      return Status::Error(error.code(), "%s: still waiting for rank %d", error.message(), name)
          .WithRank(name);
    }
    return Status::Error(error.code(), "%s, although all ranks have submitted it", error.message());
  } catch (const std::exception&) {
    return error;
  }
}

void RollCall::Publish(const Status& reason, bool by_caller) noexcept {
  if (members_.size() == 1 || heard_) return;
  try {
    std::string text;
    if (!by_caller) {
      text.append(std::to_string(static_cast<int>(reason.code())))
          .append(" ")
          .append(std::to_string(reason.rank()))
          .append(" ")
          .append(reason.message());
    }
    const std::string rank = std::to_string(members_.rank);
    if (!Set(members_.prefix + "/end/" + rank, text).ok()) return;  // the run is at its end
    if (!Set(members_.prefix + "/failed", rank).ok()) return;
    (void)Set(members_.prefix + "/roll", "");
  } catch (const std::exception&) {
    // No memory for the text: the others find out by their deadlines.
  }
}

Status RollCall::Set(const std::string& key, const std::string& text) noexcept {
  return host_.StoreSet(key, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

bool RollCall::Has(const std::string& key) noexcept {
  bool has = false;
  return host_.StoreHas(key, &has).ok() && has;
}

bool RollCall::Get(const std::string& key, std::string* text) noexcept {
  return host_.StoreGetString(key, kLookUpMs, text).ok();
}

}  // namespace engine::nccl
