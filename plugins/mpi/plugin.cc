// mpi: collectives of an MPI library, between the processes of its launcher.
#include "engine/plugin.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives.h"
#include "device_lane.h"
#include "kit/accelerator.h"
#include "kit/communicator.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/rendezvous.h"
#include "library.h"

namespace engine::mpi {
namespace {

class MpiCommunicator final : public CommunicatorBase {
 public:
  // `make` gives a unique_ptr<Collectives> for a Progress, or null in a world of one. `place`: with
  // a device where buffers are its memory.
  template <typename Make>
  MpiCommunicator(Host& host, const std::string& prefix, OnDevice place, const Make& make)
      : ranks_(host.rank_info()),
        progress_(host, prefix),
        failure_(host, prefix,
                 [this](const Status&, bool) {
                   if (on_device_ != nullptr) on_device_->Stop();
                   if (collectives_ != nullptr) collectives_->Stop(!leaves_);
                 }),
        lanes_("mpi", Lane(std::move(place), make), {}, failure_, progress_) {}
  // Says nothing to ranks that have not come so far: they have what they need of this one.
  ~MpiCommunicator() override {
    leaves_ = true;
    failure_.Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  }

  void* Query(std::string_view id) noexcept override {
    if (id == WireProgress::kId) return static_cast<WireProgress*>(&progress_);
    const bool lends = id == SharedMemory::kId && collectives_ != nullptr && !on_device_;
    return lends ? &collectives_->memory() : nullptr;
  }
  CommunicatorTraits traits() const noexcept override {
    return {.kinds = kit::kCollectives,
            .dtypes = kit::kAllDTypes,
            .max_in_flight = lanes_.count(),
            .device_memory = on_device_ == nullptr ? 0u : 1u};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(
        kit::CheckTransfer(transfer, ranks_, "mpi", TransferKind::kBarrier, on_device_ != nullptr));
    if (on_device_ == nullptr) return lanes_.Submit(transfer, out);
    ENGINE_RETURN_IF_ERROR(on_device_->Follow(transfer.stream));
    Status status = lanes_.Submit(transfer, out);
    if (!status.ok()) on_device_->Forget();
    return status;
  }
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  template <typename Make>
  kit::Transports Lane(OnDevice place, const Make& make) {
    kit::Transports lanes;
    if (place.device != nullptr) {
      auto lane = std::make_unique<DeviceLane>(std::move(place), make, progress_);
      on_device_ = lane.get();
      collectives_ = lane->collectives();
      lanes.push_back(std::move(lane));
    } else if (auto collectives = make(progress_, nullptr)) {
      collectives_ = collectives.get();
      lanes.push_back(std::move(collectives));
    }
    return lanes;
  }

  const RankInfo ranks_;
  kit::Progress progress_;
  DeviceLane* on_device_ = nullptr;     // the lane, if memory is a device's
  Collectives* collectives_ = nullptr;  // of the lane, if there is one
  std::atomic<bool> leaves_{false};
  kit::Failure failure_;
  kit::Lanes lanes_;  // ends first
};

// The ranks of MPI_COMM_WORLD that are the ranks of this run or group. MPI's numbers may be others,
// and MPI may have more processes; without its launcher each process is rank 0 of a world of its
// own. `on_device`: all buffers are memory of CUDA devices, which all of them take, or none.
Result<std::vector<int>> RanksInMpi(Host& host, const kit::Rendezvous& rendezvous,
                                    const Library& library, bool on_device) {
  constexpr std::string_view kTakes = " takes memory of devices";
  const RankInfo ranks = host.rank_info();
  const kit::Members all = kit::Members::All(ranks, rendezvous.prefix());
  const std::string topic = rendezvous.prefix() + "/mpi";
  std::string own = std::to_string(library.rank());
  if (on_device && library.takes_cuda()) own += kTakes;
  ENGINE_RETURN_IF_ERROR(kit::SetValue(host, all, topic, own));
  ENGINE_ASSIGN_OR_RETURN(const kit::Values values,
                          kit::GatherValues(host, all, topic, rendezvous.deadline(), nullptr));
  ENGINE_RETURN_IF_ERROR(kit::CheckComplete(values, all, ranks.rendezvous_timeout_ms));
  std::vector<int> in_mpi;
  for (const auto& value : values) {
    if (value->ends_with(kTakes) != values[0]->ends_with(kTakes)) {
      return Status::Error(StatusCode::kConfig,
                           "the MPI library of rank %zu %s memory of CUDA devices, unlike that of "
                           "rank 0: start all ranks with the same one",
                           in_mpi.size(), value->ends_with(kTakes) ? "takes" : "does not take");
    }
    const int rank = std::stoi(*value);
    const auto other = std::find(in_mpi.begin(), in_mpi.end(), rank);
    if (other != in_mpi.end()) {
      return Status::Error(StatusCode::kConfig,
                           "ranks %zd and %zu are both rank %d of the %d processes of MPI: start "
                           "the ranks with MPI's launcher, as in 'mpirun -n %d engine run ...', "
                           "without -n and --threads of engine",
                           other - in_mpi.begin(), in_mpi.size(), rank, library.size(),
                           ranks.world_size);
    }
    in_mpi.push_back(rank);
  }
  return in_mpi;
}

Result<std::unique_ptr<MpiCommunicator>> Make(Host& host, const Options& options) {
  const RankInfo ranks = host.rank_info();
  kit::Rendezvous rendezvous(host);
  ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
  Library* library = nullptr;
  MPI_Comm group = MPI_COMM_NULL;
  const bool on_device =
      kit::AcceleratorOf(host) != nullptr && std::string_view(host.device()->type()) == "cuda";
  if (ranks.world_size > 1) {
    // Starting MPI has no deadline, so the ranks meet before.
    ENGINE_ASSIGN_OR_RETURN(const auto here, rendezvous.Exchange(""));
    ENGINE_ASSIGN_OR_RETURN(library, Library::Start(options.String("threads") == "one"));
    ENGINE_ASSIGN_OR_RETURN(const auto in_mpi, RanksInMpi(host, rendezvous, *library, on_device));
    group = library->MakeGroup(in_mpi);
    if (group == MPI_COMM_NULL) {
      return Status::Error(StatusCode::kRendezvous, "MPI made no communicator of the ranks");
    }
  }
  const auto message_bytes = static_cast<size_t>(options.Int("message_kb")) << 10;
  OnDevice place;
  if (on_device && (library == nullptr || library->takes_cuda())) {
    place.device = host.device();
    Stream* stream = nullptr;
    ENGINE_RETURN_IF_ERROR(place.device->CreateStream(&stream));
    place.stream.reset(stream);
  }
  return std::make_unique<MpiCommunicator>(
      host, rendezvous.prefix(), std::move(place),
      [&](kit::Progress& progress, const OnDevice* on) -> std::unique_ptr<Collectives> {
        if (library == nullptr) return nullptr;
        return std::make_unique<Collectives>(*library, group, ranks, message_bytes, progress, on);
      });
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "mpi", out, [&] { return Make(host, options); });
}

constexpr std::array kOptions{
    kit::IntOption("message_kb", "1024", 1, 4096,
                   "KiB that a rank sends to another at once, at most; 4 MiB to all"),
    kit::EnumOption("threads", "any", "any|one",
                    "which call MPI; one: as where a library has no MPI_THREAD_MULTIPLE")};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "mpi",
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "collectives of an MPI library, between processes of mpirun or srun",
                    .create = Create},
                   NoOps(), kOptions);

}  // namespace engine::mpi
