#include "rendezvous.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace engine::nccl {
namespace {

// How often the store is asked whether the run goes on while NCCL connects.
constexpr auto kLookAround = std::chrono::milliseconds(100);

}  // namespace

ncclConfig_t MakeConfig(const Settings& settings) noexcept {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (settings.min_ctas > 0) config.minCTAs = settings.min_ctas;
  if (settings.max_ctas > 0) config.maxCTAs = settings.max_ctas;
  if (settings.cta_policy > 0) config.CTAPolicy = settings.cta_policy;
  return config;
}

Rendezvous::Rendezvous(Host& host, std::shared_ptr<const Library> library, const Settings& settings)
    : host_(host),
      library_(std::move(library)),
      settings_(settings),
      ranks_(host.rank_info()),
      rendezvous_(host) {}

Result<std::unique_ptr<Comm>> Rendezvous::Meet() {
  ENGINE_RETURN_IF_ERROR(CheckPolicy());
  std::vector<ncclUniqueId> ids(1);
  if (ranks_.world_size > 1) {
    ENGINE_RETURN_IF_ERROR(rendezvous_.Begin());
    ENGINE_ASSIGN_OR_RETURN(ids, ShareIds());
  } else {
    ENGINE_ASSIGN_OR_RETURN(ids.front(), MakeId());
  }
  return Connect(std::move(ids));
}

// An older NCCL would not look at it, and ranks would run with another policy than was asked for.
Status Rendezvous::CheckPolicy() {
  const int policy = settings_.cta_policy;
  const int least = policy > 1 ? 22800 : policy > 0 ? 22700 : 0;
  if (library_->version() >= least) return {};
  return Status::Error(StatusCode::kPlugin,
                       "this cta_policy of nccl needs NCCL %s or later, and '%s' is %s: install a "
                       "newer one, or set cta_policy to default",
                       VersionText(least).c_str(), library_->name().c_str(),
                       VersionText(library_->version()).c_str());
}

Result<ncclUniqueId> Rendezvous::MakeId() {
  ncclUniqueId id{};
  ENGINE_RETURN_IF_ERROR(
      library_->ToStatus(library_->functions().GetUniqueId(&id), "making an id", nullptr));
  return id;
}

// Ids are made as evenly over the ranks as NCCL asks for. Ranks with different libraries fail in
// ways that do not say so, and are told here.
Result<std::vector<ncclUniqueId>> Rendezvous::ShareIds() {
  const int64_t ranks = ranks_.world_size;
  const bool scales = library_->functions().CommInitRankScalable != nullptr;
  const int64_t count = scales ? (ranks + settings_.ranks_per_id - 1) / settings_.ranks_per_id : 1;
  std::string own = std::to_string(library_->version());
  // Of the ranks r, those at which r * count / ranks has just grown: `count` of them, rank 0 first.
  if (ranks_.rank * count % ranks < count) {
    ENGINE_ASSIGN_OR_RETURN(const ncclUniqueId id, MakeId());
    own.append(" ").append(id.internal, sizeof(id.internal));
  }
  ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> values, rendezvous_.Exchange(own));
  std::vector<ncclUniqueId> ids;
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    const std::string& value = values[static_cast<size_t>(rank)];
    const int version = std::atoi(value.c_str());
    if (version != library_->version()) {
      return Status::Error(StatusCode::kPlugin,
                           "rank %d has NCCL %s and rank %d has %s: install the same on all hosts, "
                           "or set the option library of nccl",
                           rank, VersionText(version).c_str(), ranks_.rank,
                           VersionText(library_->version()).c_str())
          .WithRank(rank);
    }
    const size_t at = value.find(' ') + 1;
    if (at > 0 && value.size() - at == sizeof(ncclUniqueId)) {
      std::memcpy(&ids.emplace_back(), value.data() + at, sizeof(ncclUniqueId));
    }
  }
  host_.Log(LogLevel::kDebug, std::to_string(ranks_.world_size)
                                  .append(" ranks, ids of NCCL: ")
                                  .append(std::to_string(ids.size())));
  return ids;
}

Result<std::unique_ptr<Comm>> Rendezvous::Connect(std::vector<ncclUniqueId> ids) {
  ncclConfig_t config = MakeConfig(settings_);
  const Functions& call = library_->functions();
  const int ranks = ranks_.world_size, id_count = static_cast<int>(ids.size());
  ncclComm_t made = nullptr;
  const ncclResult_t begun =
      id_count > 1
          ? call.CommInitRankScalable(&made, ranks, ranks_.rank, id_count, ids.data(), &config)
          : call.CommInitRankConfig(&made, ranks, ids.front(), ranks_.rank, &config);
  auto comm = std::make_unique<Comm>(library_, made);  // aborts what does not become ready
  ENGINE_RETURN_IF_ERROR(library_->ToStatus(begun, "beginning a communicator", made));
  const auto is_ready = []() -> Result<bool> { return true; };
  kit::Clock::time_point next_look = kit::Clock::now() + kLookAround;
  ENGINE_RETURN_IF_ERROR(comm->Drive("connecting the GPUs of all ranks", is_ready, [&]() -> Status {
    const kit::Clock::time_point now = kit::Clock::now();
    if (now >= rendezvous_.deadline()) {
      return DidNotConnect(ranks_.rank, ranks, ranks_.rendezvous_timeout_ms);
    }
    if (ranks == 1 || now < next_look) return {};
    next_look = now + kLookAround;
    uint32_t here = 0;
    return host_.StoreHas(rendezvous_.prefix(), &here);
  }));
  return comm;
}

Status DidNotConnect(int32_t rank, int32_t size, int64_t timeout_ms) noexcept {
  return Status::Error(StatusCode::kRendezvous,
                       "all %d ranks have come, but NCCL did not connect rank %d within %lld ms: "
                       "NCCL_DEBUG=INFO says where it waits, NCCL_SOCKET_IFNAME which network "
                       "interface it may use",
                       size, rank, static_cast<long long>(timeout_ms));
}

}  // namespace engine::nccl
