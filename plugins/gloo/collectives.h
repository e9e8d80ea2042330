// Gloo's own algorithms, as a lane of transfers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "kit/lanes.h"
#include "transport.h"

namespace engine::gloo {

class Collectives final : public kit::Transport {
 public:
  // `all_reduce`: the option of that name.
  Collectives(tcp::Connections& connections, int lane, kit::Progress& progress,
              std::string all_reduce);

  Status Run(kit::PooledWork& work) noexcept override;
  int32_t WaitingFor() const noexcept override { return transport_->waiting_for(); }

 private:
  // These throw.
  void RunCollective(const Transfer& transfer);
  void AllReduce(const Transfer& transfer, const void* send, void* recv, int64_t count) const;

  const RankInfo ranks_;
  const std::string all_reduce_;
  const std::shared_ptr<gloo::Transport> transport_;
  const std::shared_ptr<Context> context_;
  std::vector<std::byte> scratch_;  // of reduce-scatters
};

}  // namespace engine::gloo
