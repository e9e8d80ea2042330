// A Communicator between GPUs.
#pragma once

#include <memory>
#include <string>

#include "arenas.h"
#include "comm.h"
#include "engine/communicator.h"
#include "engine/host.h"
#include "failure.h"
#include "gpu.h"
#include "pipeline.h"
#include "rendezvous.h"

namespace engine::nccl {

struct NcclSettings {
  std::string library = "libnccl.so.2";
  CommSettings comm;
  bool symmetric = false;
};

class NcclCommunicator final : public Communicator {
 public:
  // Collective unless the world is one.
  static Result<std::unique_ptr<NcclCommunicator>> Create(Host& host,
                                                          const NcclSettings& settings) noexcept;
  ~NcclCommunicator() override;

  // kSharedMemoryId: a SharedMemory, of the GPU.
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

  NcclCommunicator(Host& host, int32_t gpu, GpuStream stream, Token token,
                   std::unique_ptr<Comm> comm, const std::string& prefix, bool symmetric);
  static Result<Token> MakeToken(const GpuStream& stream) noexcept;
  void Close() noexcept;

  const RankInfo ranks_;
  const int32_t gpu_;
  const GpuStream stream_;
  Token token_;
  const std::unique_ptr<Comm> comm_;
  Failure failure_;
  Arenas arenas_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace engine::nccl
