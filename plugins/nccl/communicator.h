// A Communicator between GPUs.
#pragma once

#include <memory>
#include <string_view>

#include "arenas.h"
#include "comm.h"
#include "engine/communicator.h"
#include "engine/ext/grouped_transfers.h"
#include "engine/ext/recorded_transfers.h"
#include "engine/ext/sub_groups.h"
#include "engine/host.h"
#include "gpu.h"
#include "kit/failure.h"
#include "kit/rendezvous.h"
#include "pipeline.h"
#include "rendezvous.h"

namespace engine::nccl {

class NcclCommunicator final : public CommunicatorBase,
                               SubGroupsBase,
                               GroupedTransfersBase,
                               RecordedTransfersBase {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<NcclCommunicator>> Create(Host& host, const Settings& settings);
  ~NcclCommunicator() override;

  // SharedMemory::kId: a SharedMemory, of the GPU. SubGroups::kId and GroupedTransfers::kId where NCCL
  // has what they need.
  void* Query(std::string_view id) noexcept override;

  CommunicatorTraits traits() const noexcept override;
  Status Submit(const Transfer& transfer, Work** out) noexcept override;
  void Abort(const Status& reason) noexcept override;

 private:
  // One int32 in memory of the GPU, for barriers.
  struct FreeGpuMemory {
    void operator()(void* memory) const noexcept;
  };
  using Token = std::unique_ptr<void, FreeGpuMemory>;

  NcclCommunicator(Host& host, const Settings& settings, int32_t gpu, GpuStream stream, Token token,
                   std::unique_ptr<Comm> comm, kit::Members members);
  static Result<Token> MakeToken(const GpuStream& stream) noexcept;
  Status Split(int32_t color, int32_t key, Communicator** out) noexcept override;
  Result<std::unique_ptr<NcclCommunicator>> MakeGroup(int32_t color, int32_t key);
  Status SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept override;
  Status Check(const Transfer& transfer) const noexcept;
  void Close() noexcept;

  Host& host_;
  const Settings settings_;
  const kit::Members members_;
  const int32_t gpu_;
  const GpuStream stream_;
  Token token_;
  const std::unique_ptr<Comm> comm_;
  kit::Failure failure_;
  Arenas arenas_;
  uint64_t splits_ = 0;  // so far
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace engine::nccl
