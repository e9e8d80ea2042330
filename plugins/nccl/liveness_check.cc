#include "liveness_check.h"

#include <cstdlib>
#include <exception>
#include <utility>

namespace engine::nccl {
namespace {

constexpr int64_t kAnswerMs = 700;  // several times Pipeline's kLookMs
constexpr int64_t kLookUpMs = 200;

// What the rank that errors call `publisher` wrote as its end.
Status ParseEnd(int publisher, const std::string& text) {
  if (text.empty()) {
    return Status::Error(StatusCode::kPeerLost, "rank %d left the run", publisher)
        .WithRank(publisher);
  }
  const Status unknown =
      Status::Error(StatusCode::kPeerLost, "rank %d failed", publisher).WithRank(publisher);
  return kit::ParseCause(publisher, text, unknown);
}

}  // namespace

LivenessCheck::LivenessCheck(Host& host, kit::Members members, const kit::Failure& failure)
    : host_(host), members_(std::move(members)), failure_(failure) {}

Status LivenessCheck::Look(uint64_t submitted) noexcept {
  if (members_.size() == 1) return {};
  try {
    if (!Has(members_.prefix + "/roll")) return {};
    const bool answers = !answered_;
    if (answers) answered_ = Answer(submitted).ok();
    const Status failure = OthersFailure();
    if (failure.ok() && answers && members_.rank == 0) (void)Gather();  // for the one that called
    return failure;
  } catch (const std::exception&) {
    return {};  // no memory for a key: next time
  }
}

Status LivenessCheck::Answer(uint64_t submitted) {
  return kit::SetValue(host_, members_, members_.prefix + "/count", std::to_string(submitted));
}

Result<kit::Values> LivenessCheck::Gather() {
  return kit::GatherValues(host_, members_, members_.prefix + "/count", kit::DeadlineIn(kAnswerMs),
                           &failure_);
}

// What is read here was complete before `failed` was set (Publish).
Status LivenessCheck::OthersFailure() {
  std::string rank, end;
  if (!Has(members_.prefix + "/failed") || !Get(members_.prefix + "/failed", &rank)) return {};
  const int publisher = std::atoi(rank.c_str());
  if (publisher == members_.rank) return {};
  if (!Get(members_.prefix + "/end/" + std::to_string(publisher), &end)) return {};
  heard_ = true;
  const bool known = publisher >= 0 && publisher < members_.size();
  return ParseEnd(known ? members_.names[static_cast<size_t>(publisher)] : publisher, end);
}

Status LivenessCheck::Investigate(const Status& error, uint64_t submitted,
                                  uint64_t waiting_for) noexcept {
  if (members_.size() == 1) return error;
  try {
    (void)Answer(submitted);
    (void)kit::SetText(host_, members_.prefix + "/roll", "");
    const Result<kit::Values> counts = Gather();
    const Status earlier = OthersFailure();
    if (!earlier.ok()) return earlier;
    if (!counts.ok()) return error;
    for (size_t rank = 0; rank < counts->size(); ++rank) {
      if ((*counts)[rank]) continue;
      const int32_t name = members_.names[rank];
      return Status::Error(error.code(), "%s: rank %d does not answer", error.message(), name)
          .WithRank(name);
    }
    if (error.code() != StatusCode::kTimeout) return error;
    for (size_t rank = 0; rank < counts->size(); ++rank) {
      if (std::strtoull((*counts)[rank]->c_str(), nullptr, 10) >= waiting_for) continue;
      const int32_t name = members_.names[rank];
      return Status::Error(error.code(), "%s: still waiting for rank %d", error.message(), name)
          .WithRank(name);
    }
    return Status::Error(error.code(), "%s, although all ranks have submitted it", error.message());
  } catch (const std::exception&) {
    return error;
  }
}

void LivenessCheck::Publish(const Status& reason, bool by_caller) noexcept {
  if (members_.size() == 1 || heard_) return;
  try {
    // In this order: who finds `failed` finds the end that it names, and `roll` makes all look.
    const std::string text = by_caller ? "" : kit::CauseText(reason);
    const std::string rank = std::to_string(members_.rank);
    if (!kit::SetText(host_, members_.prefix + "/end/" + rank, text).ok())
      return;  // the run is at its end
    if (!kit::SetText(host_, members_.prefix + "/failed", rank).ok()) return;
    (void)kit::SetText(host_, members_.prefix + "/roll", "");
  } catch (const std::exception&) {
    // No memory for the text: the others find out by their deadlines.
  }
}

bool LivenessCheck::Has(const std::string& key) noexcept {
  uint32_t has = 0;
  return host_.StoreHas(key, &has).ok() && has != 0;
}

bool LivenessCheck::Get(const std::string& key, std::string* text) noexcept {
  return StoreGetString(host_, key, kLookUpMs, text).ok();
}

}  // namespace engine::nccl
