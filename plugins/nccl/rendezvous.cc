#include "rendezvous.h"

#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "describe.h"

namespace engine::nccl {
namespace {

// How often the store is asked whether the run goes on while NCCL connects.
constexpr auto kLookAround = std::chrono::milliseconds(100);

std::span<const uint8_t> BytesOf(const void* data, size_t size) {
  return {static_cast<const uint8_t*>(data), size};
}

}  // namespace

ncclConfig_t MakeConfig(const CommSettings& settings) noexcept {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (settings.min_ctas > 0) config.minCTAs = settings.min_ctas;
  if (settings.max_ctas > 0) config.maxCTAs = settings.max_ctas;
  return config;
}

Rendezvous::Rendezvous(Host& host, std::shared_ptr<const Library> library,
                       const CommSettings& settings)
    : host_(host),
      library_(std::move(library)),
      settings_(settings),
      ranks_(host.rank_info()),
      deadline_(DeadlineIn(settings.rendezvous_timeout_ms)) {}

Result<std::unique_ptr<Comm>> Rendezvous::Meet() {
  ncclUniqueId id{};
  if (ranks_.world_size > 1) {
    ENGINE_RETURN_IF_ERROR(ChoosePrefix());
    ENGINE_RETURN_IF_ERROR(CheckIn());
    ENGINE_RETURN_IF_ERROR(ShareId(&id));
  } else {
    ENGINE_RETURN_IF_ERROR(
        library_->ToStatus(library_->functions().GetUniqueId(&id), "making an id", nullptr));
  }
  ENGINE_ASSIGN_OR_RETURN(const ncclComm_t comm, Begin(id));
  return std::make_unique<Comm>(library_, comm);
}

Status Rendezvous::ChoosePrefix() {
  bool used = true;
  for (int number = 0; used; ++number) {
    prefix_ = std::to_string(number);
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(HereKey(ranks_.rank), &used));
  }
  return {};
}

Status Rendezvous::CheckIn() {
  const std::string version = std::to_string(library_->version());
  return host_.StoreSet(HereKey(ranks_.rank), BytesOf(version.data(), version.size()));
}

Status Rendezvous::ShareId(ncclUniqueId* id) {
  const std::string key = prefix_ + "/id";
  if (ranks_.rank == 0) {
    ENGINE_RETURN_IF_ERROR(
        library_->ToStatus(library_->functions().GetUniqueId(id), "making an id", nullptr));
    return host_.StoreSet(key, BytesOf(id->internal, sizeof(id->internal)));
  }
  std::string text;
  const Status found = host_.StoreGetString(key, MillisecondsUntil(deadline_), &text);
  if (found.code() == StatusCode::kTimeout) return Missing();
  ENGINE_RETURN_IF_ERROR(found);
  if (text.size() != sizeof(id->internal)) {
    return Status::Error(StatusCode::kRendezvous,
                         "rank 0 published an id of %zu bytes where %zu were expected: all ranks "
                         "must have the same nccl plugin",
                         text.size(), sizeof(id->internal))
        .WithRank(0);
  }
  std::memcpy(id->internal, text.data(), text.size());
  return {};
}

Result<ncclComm_t> Rendezvous::Begin(const ncclUniqueId& id) {
  ncclConfig_t config = MakeConfig(settings_);
  const Functions& call = library_->functions();
  ncclComm_t comm = nullptr;
  const ncclResult_t begun =
      call.CommInitRankConfig(&comm, ranks_.world_size, id, ranks_.rank, &config);
  Status status = library_->ToStatus(begun, "beginning a communicator", comm);
  if (status.ok()) status = AwaitReady(comm);
  if (status.ok()) return comm;
  if (comm != nullptr) (void)call.CommAbort(comm);
  // Ranks with different libraries fail in ways that do not say so.
  const Status versions = CompareVersions();
  return versions.ok() ? status : versions;
}

Status Rendezvous::AwaitReady(ncclComm_t comm) {
  Clock::time_point next_look = Clock::now() + kLookAround;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = library_->functions().CommGetAsyncError(comm, &state);
    const ncclResult_t result = asked == ncclSuccess ? state : asked;
    if (result == ncclSuccess) return {};
    ENGINE_RETURN_IF_ERROR(library_->ToStatus(result, "connecting the GPUs of all ranks", comm));
    const Clock::time_point now = Clock::now();
    if (now >= deadline_) return Missing();
    if (ranks_.world_size > 1 && now >= next_look) {
      bool here = false;
      ENGINE_RETURN_IF_ERROR(host_.StoreHas(HereKey(ranks_.rank), &here));
      next_look = now + kLookAround;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status Rendezvous::CompareVersions() {
  for (int other = 0; other < ranks_.world_size && ranks_.world_size > 1; ++other) {
    bool present = false;
    std::string text;
    if (!host_.StoreHas(HereKey(other), &present).ok() || !present) continue;
    if (!host_.StoreGetString(HereKey(other), 1000, &text).ok()) continue;
    const int version = std::atoi(text.c_str());
    if (version == library_->version()) continue;
    return Status::Error(StatusCode::kPlugin,
                         "rank %d has NCCL %s and rank %d has %s: install the same on all hosts, "
                         "or set the option library of nccl",
                         other, VersionText(version).c_str(), ranks_.rank,
                         VersionText(library_->version()).c_str())
        .WithRank(other);
  }
  return {};
}

// Who has not come, or, if all have, that NCCL could not connect them.
Status Rendezvous::Missing() {
  std::vector<int32_t> missing;
  for (int other = 0; other < ranks_.world_size && ranks_.world_size > 1; ++other) {
    bool present = false;
    ENGINE_RETURN_IF_ERROR(host_.StoreHas(HereKey(other), &present));
    if (!present) missing.push_back(other);
  }
  if (missing.empty()) {
    return DidNotConnect(ranks_.rank, ranks_.world_size, settings_.rendezvous_timeout_ms);
  }
  return DidNotCome(missing, ranks_.world_size, settings_.rendezvous_timeout_ms);
}

std::string Rendezvous::HereKey(int rank) const {
  return prefix_ + "/here/" + std::to_string(rank);
}

}  // namespace engine::nccl
