#include "split.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <numeric>
#include <span>
#include <thread>

#include "engine/sub_groups.h"

namespace engine::nccl {
namespace {

// How long a look into the store may take before the communicator is asked whether it has failed.
constexpr int64_t kLookMs = 100;

}  // namespace

Split::Split(Host& host, const Members& parents, uint64_t number, const CommSettings& settings,
             const Failure& failure)
    : host_(host),
      parents_(parents),
      prefix_(std::string(parents.prefix).append("/split/").append(std::to_string(number))),
      settings_(settings),
      failure_(failure),
      deadline_(DeadlineIn(settings.rendezvous_timeout_ms)) {}

Result<Members> Split::Meet(int32_t color, int32_t key) {
  std::vector<Wish> wishes{{color, key}};
  if (parents_.size() > 1) {
    const std::string wish = std::to_string(color).append(" ").append(std::to_string(key));
    ENGINE_RETURN_IF_ERROR(
        host_.StoreSet(KeyOf(parents_.rank),
                       std::span(reinterpret_cast<const uint8_t*>(wish.data()), wish.size())));
    ENGINE_ASSIGN_OR_RETURN(wishes, ReadWishes());
  }
  Members group{.prefix = std::string(prefix_).append("/").append(std::to_string(color))};
  if (color == kNoColor) return group;
  std::vector<int32_t> order(wishes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto wish_of = [&](int32_t rank) { return wishes[static_cast<size_t>(rank)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return wish_of(a).key < wish_of(b).key; });
  for (const int32_t rank : order) {
    if (wish_of(rank).color != color) continue;
    if (rank == parents_.rank) group.rank = group.size();
    group.names.push_back(parents_.names[static_cast<size_t>(rank)]);
  }
  return group;
}

Result<std::vector<Split::Wish>> Split::ReadWishes() {
  std::vector<Wish> wishes(static_cast<size_t>(parents_.size()));
  for (int32_t rank = 0; rank < parents_.size();) {
    if (failure_.raised()) return failure_.reason();
    std::string text;
    const int64_t left_ms = MillisecondsUntil(deadline_);
    const Status found = host_.StoreGetString(KeyOf(rank), std::min(left_ms, kLookMs), &text);
    if (found.code() == StatusCode::kTimeout) {
      if (Clock::now() >= deadline_) return Missing();
      continue;
    }
    ENGINE_RETURN_IF_ERROR(found);
    Wish& wish = wishes[static_cast<size_t>(rank)];
    if (std::sscanf(text.c_str(), "%" SCNd32 " %" SCNd32, &wish.color, &wish.key) != 2) {
      return Status::Error(StatusCode::kRendezvous,
                           "rank %d published '%s' for a split: all ranks must have the same nccl "
                           "plugin",
                           parents_.names[static_cast<size_t>(rank)], text.c_str());
    }
    ++rank;
  }
  return wishes;
}

Result<std::unique_ptr<Comm>> Split::Begin(Comm& parent, Pipeline& pipeline, int32_t color,
                                           int32_t key) {
  ncclComm_t made = nullptr;
  ENGINE_RETURN_IF_ERROR(AwaitChild(parent, pipeline, color, key, &made));
  std::unique_ptr<Comm> child;
  if (made == nullptr) return child;
  child = std::make_unique<Comm>(parent.shared_library(), made);
  ENGINE_RETURN_IF_ERROR(AwaitReady(*child));
  return child;
}

// While NCCL splits, the parent takes nothing else.
Status Split::AwaitChild(Comm& parent, Pipeline& pipeline, int32_t color, int32_t key,
                         ncclComm_t* child) {
  ncclConfig_t config = MakeConfig(settings_);
  config.splitShare = 0;  // they work at the same time
  for (bool begun = false;;) {
    {
      const std::lock_guard lock(parent.mutex());
      if (parent.aborted()) return failure_.reason();
      if (parent.busy()) ENGINE_RETURN_IF_ERROR(parent.Poll());
      if (!begun && !parent.busy() && !pipeline.has_waiting()) {
        begun = true;
        ENGINE_RETURN_IF_ERROR(parent.Split(color, key, config));
      }
      if (begun && !parent.busy()) {
        *child = parent.TakeChild();
        return {};
      }
    }
    ENGINE_RETURN_IF_ERROR(Pause());
  }
}

// Nobody else knows of it yet, but a lock is due.
Status Split::AwaitReady(Comm& child) {
  for (;;) {
    {
      const std::lock_guard lock(child.mutex());
      ENGINE_RETURN_IF_ERROR(child.Poll());
      if (!child.busy()) return {};
    }
    ENGINE_RETURN_IF_ERROR(Pause());
  }
}

Status Split::Pause() {
  if (failure_.raised()) return failure_.reason();
  if (Clock::now() >= deadline_) {
    return DidNotConnect(parents_.names[static_cast<size_t>(parents_.rank)], parents_.size(),
                         settings_.rendezvous_timeout_ms);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {};
}

Status Split::Missing() {
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < parents_.size(); ++rank) {
    bool present = false;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(KeyOf(rank), &present));
    if (!present) missing.push_back(parents_.names[static_cast<size_t>(rank)]);
  }
  if (missing.empty()) {
    return DidNotConnect(parents_.names[static_cast<size_t>(parents_.rank)], parents_.size(),
                         settings_.rendezvous_timeout_ms);
  }
  return DidNotCome(missing, parents_.size(), settings_.rendezvous_timeout_ms);
}

std::string Split::KeyOf(int32_t rank) const {
  return std::string(prefix_).append("/").append(std::to_string(rank));
}

}  // namespace engine::nccl
