#include "members.h"

#include <numeric>
#include <utility>

namespace engine::nccl {

Members Members::All(const RankInfo& ranks, std::string prefix) {
  Members all{.rank = ranks.rank,
              .names = std::vector<int32_t>(static_cast<size_t>(ranks.world_size)),
              .prefix = std::move(prefix)};
  std::iota(all.names.begin(), all.names.end(), 0);
  return all;
}

Status DidNotConnect(int32_t rank, int32_t size, int64_t timeout_ms) noexcept {
  return Status::Error(StatusCode::kRendezvous,
                       "all %d ranks have come, but NCCL did not connect rank %d within %lld ms: "
                       "NCCL_DEBUG=INFO says where it waits, NCCL_SOCKET_IFNAME which network "
                       "interface it may use",
                       size, rank, static_cast<long long>(timeout_ms));
}

}  // namespace engine::nccl
