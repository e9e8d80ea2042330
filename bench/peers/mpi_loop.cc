// A contender that calls MPI as osu_allreduce does: MPI_Allreduce, on the thread and with the buffers of the caller.
//   ninja mpi_loop; mpirun -n 2 --bind-to core engine bench collectives --a mpi --b ./libengine_mpi_loop.so
// It is no communicator to train with: nothing ends a call for which other ranks have not come.
#include <mpi.h>

#include <memory>

#include "engine/plugin.h"
#include "kit/communicator.h"
#include "kit/create.h"

namespace engine::bench {
namespace {

// Of every transfer, as each is done when Submit returns.
class DoneWork final : public WorkBase {
 public:
  WorkState state() const noexcept override { return WorkState::kDone; }
  int64_t started_ns() const noexcept override { return 0; }
  Status WaitHost(int64_t) noexcept override { return {}; }
  Status WaitStream(Stream*) noexcept override { return {}; }
  void OnDone(void (*callback)(void* context), void* context) noexcept override {
    callback(context);
  }
  void Release() noexcept override {}
};

class MpiLoop final : public CommunicatorBase {
 public:
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = Bit(TransferKind::kAllReduce), .dtypes = Bit(DType::kFloat32)};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    const bool in_place = transfer.send == transfer.recv;
    const int error =
        MPI_Allreduce(in_place ? MPI_IN_PLACE : transfer.send, transfer.recv,
                      static_cast<int>(transfer.count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    *out = &work_;
    return error == MPI_SUCCESS ? Status() : Status::Error(StatusCode::kPeerLost, "MPI_Allreduce");
  }
  void Abort(const Status&) noexcept override {}

 private:
  DoneWork work_;
};

StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  return kit::CreateCommunicator(host, "mpi_loop", out, []() -> Result<std::unique_ptr<MpiLoop>> {
    int is_started = 0;
    MPI_Initialized(&is_started);
    if (is_started != 0) return std::make_unique<MpiLoop>();
    return Status::Error(StatusCode::kConfig, "A starts MPI: '--a mpi --b libengine_mpi_loop.so'");
  });
}

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "mpi_loop",
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "MPI_Allreduce, for figures alone",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace
}  // namespace engine::bench
