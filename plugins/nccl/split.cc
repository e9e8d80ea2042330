#include "split.h"

#include <algorithm>
#include <cinttypes>
#include <utility>
#include <vector>

#include "engine/ext/sub_groups.h"

namespace engine::nccl {

Split::Split(Host& host, const kit::Members& parents, uint64_t number, const Settings& settings,
             const kit::Failure& failure)
    : host_(host),
      parents_(parents),
      prefix_(std::string(parents.prefix).append("/split/").append(std::to_string(number))),
      settings_(settings),
      failure_(failure),
      timeout_ms_(host.rank_info().rendezvous_timeout_ms),
      deadline_(kit::DeadlineIn(timeout_ms_)) {}

// The order in a group is that of NCCL: by key, and of equal keys by rank in the parent.
Result<kit::Members> Split::Meet(int32_t color, int32_t key) {
  kit::Values values{std::to_string(color).append(" ").append(std::to_string(key))};
  if (parents_.size() > 1) {
    ENGINE_RETURN_IF_ERROR(kit::SetValue(host_, parents_, prefix_, *values.front()));
    ENGINE_ASSIGN_OR_RETURN(values,
                            kit::GatherValues(host_, parents_, prefix_, deadline_, &failure_));
    ENGINE_RETURN_IF_ERROR(kit::CheckComplete(values, parents_, timeout_ms_));
  }
  kit::Members group{.prefix = std::string(prefix_).append("/").append(std::to_string(color))};
  if (color == kNoColor) return group;
  std::vector<std::pair<int32_t, int32_t>> order;  // key and rank, of this colour
  for (int32_t rank = 0; rank < parents_.size(); ++rank) {
    int32_t its_color = 0, its_key = 0;
    const char* const asked = values[static_cast<size_t>(rank)]->c_str();
    if (std::sscanf(asked, "%" SCNd32 " %" SCNd32, &its_color, &its_key) != 2) {
      return Status::Error(StatusCode::kRendezvous,
                           "rank %d published '%s' for a split: all ranks must have the same nccl "
                           "plugin",
                           parents_.names[static_cast<size_t>(rank)], asked);
    }
    if (its_color == color) order.emplace_back(its_key, rank);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [its_key, rank] : order) {
    if (rank == parents_.rank) group.rank = group.size();
    group.names.push_back(parents_.names[static_cast<size_t>(rank)]);
  }
  return group;
}

Result<std::unique_ptr<Comm>> Split::Begin(Comm& parent, Pipeline& pipeline, int32_t color,
                                           int32_t key) {
  ncclComm_t made = nullptr;
  ENGINE_RETURN_IF_ERROR(AwaitChild(parent, pipeline, color, key, &made));
  std::unique_ptr<Comm> child;
  if (made == nullptr) return child;
  child = std::make_unique<Comm>(parent.shared_library(), made);
  const auto is_ready = []() -> Result<bool> { return true; };
  ENGINE_RETURN_IF_ERROR(
      child->Drive("splitting a communicator", is_ready, [this] { return GiveUp(); }));
  return child;
}

// While NCCL splits, the parent takes nothing else.
Status Split::AwaitChild(Comm& parent, Pipeline& pipeline, int32_t color, int32_t key,
                         ncclComm_t* child) {
  ncclConfig_t config = MakeConfig(settings_);
  config.splitShare = 0;  // they work at the same time
  bool begun = false;
  const auto step = [&]() -> Result<bool> {
    if (!begun && pipeline.has_waiting()) return false;
    if (!std::exchange(begun, true)) ENGINE_RETURN_IF_ERROR(parent.Split(color, key, config));
    if (parent.busy()) return false;
    *child = parent.TakeChild();  // with the mutex: an abort would take it too
    return true;
  };
  const Status status = parent.Drive("splitting a communicator", step, [this] { return GiveUp(); });
  return !status.ok() && failure_.raised() ? failure_.reason() : status;
}

Status Split::GiveUp() {
  if (failure_.raised()) return failure_.reason();
  if (kit::Clock::now() < deadline_) return {};
  return DidNotConnect(parents_.names[static_cast<size_t>(parents_.rank)], parents_.size(),
                       timeout_ms_);
}

}  // namespace engine::nccl
