// hier: transfers inside of hosts by one communicator, between them by another.
#include "engine/plugin.h"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ext/shared_memory.h"
#include "hosts.h"
#include "kit/accelerator.h"
#include "kit/communicator.h"
#include "kit/failure.h"
#include "kit/inner_communicator.h"
#include "kit/lanes.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/rendezvous.h"
#include "pipeline.h"
#include "queued_work.h"

namespace engine::hier {
namespace {

class HierCommunicator final : public CommunicatorBase {
 public:
  HierCommunicator(Host& host, const std::string& prefix, const CommunicatorTraits& traits,
                   std::vector<Levels> levels, std::unique_ptr<Communicator> all)
      : ranks_(host.rank_info()),
        traits_(traits),
        progress_(host, prefix),
        failure_(host, prefix,
                 [this](const Status& reason, bool) {
                   for (const auto& [inner, outer] : levels_) {
                     inner.communicator->Abort(reason);
                     outer.communicator->Abort(reason);
                   }
                   if (all_) all_->Abort(reason);
                 }),
        ends_(failure_, progress_),
        levels_(std::move(levels)),
        all_(std::move(all)) {
    ends_.ConfirmBy(all_.get());
  }
  // Once.
  Status MakeLanes(const Hosts& hosts, size_t part_bytes, Device* device) {
    kit::Transports lanes;
    for (const Levels& lane : levels_) {
      if (!device && ranks_.world_size == 1) break;
      ENGINE_ASSIGN_OR_RETURN(
          auto made, Pipeline::Create(hosts, lane, part_bytes, device, failure_, progress_));
      if (device) {
        queues_.push_back(std::move(made));
      } else {
        lanes.push_back(std::move(made));
      }
    }
    if (device) return {};
    lanes_ = std::make_unique<kit::Lanes>("hier", std::move(lanes), std::chrono::microseconds(0),
                                          failure_, progress_);
    return {};
  }
  // Members go from the last to the first: lanes_ joins the threads that use the others, and the end
  // of levels_ that of what is queued.
  ~HierCommunicator() override {
    Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
    ends_.Stop();
  }

  // Memory of a host's ranks is that of the first lane; the others copy it.
  void* Query(std::string_view id) noexcept override {
    if (id == WireProgress::kId) return static_cast<WireProgress*>(&progress_);
    return id == SharedMemory::kId ? levels_[0][0].communicator->Query(id, 0) : nullptr;
  }
  CommunicatorTraits traits() const noexcept override { return traits_; }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(
        kit::CheckTransfer(transfer, ranks_, "hier", TransferKind::kBarrier, !lanes_));
    if (lanes_) return lanes_->Submit(transfer, out);
    if (failure_.raised()) return failure_.reason();
    ENGINE_ASSIGN_OR_RETURN(QueuedWork* const work, ends_.Take(transfer));
    const Status status = queues_[submitted_++ % queues_.size()]->Queue(*work);
    if (status.ok()) {
      *out = work;
    } else {
      work->Complete(status);
      work->Release();
    }
    return status;
  }
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  const RankInfo ranks_;
  const CommunicatorTraits traits_;
  kit::Progress progress_;
  kit::Failure failure_;
  Ends ends_;
  std::vector<std::unique_ptr<Pipeline>> queues_;  // of lanes on a device
  uint64_t submitted_ = 0;                         // [io-lane]
  const std::vector<Levels> levels_;               // of each lane
  const std::unique_ptr<Communicator> all_;        // ranks, on a device with several hosts
  std::unique_ptr<kit::Lanes> lanes_;              // of the host, or null; uses all of the above
};

Result<std::unique_ptr<HierCommunicator>> Make(Host& host, const Options& options) {
  const RankInfo rank = host.rank_info();
  kit::Rendezvous rendezvous(host);
  ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
  ENGINE_ASSIGN_OR_RETURN(const Hosts hosts,
                          FindHosts(rendezvous, rank, options.Int("ranks_per_host")));
  std::vector<Levels> levels(static_cast<size_t>(options.Int("lanes")));
  CommunicatorTraits traits{.kinds = kit::kCollectives,
                            .dtypes = kit::kAllDTypes,
                            .max_in_flight = static_cast<uint32_t>(levels.size()),
                            .device_memory = kit::AcceleratorOf(host) ? 1u : 0u};
  for (size_t i = 0; i < 2 * levels.size(); ++i) {
    const char* const option = i % 2 == 0 ? "inner" : "outer";
    const std::string plugin(options.String(option)), label = option + std::to_string(i / 2);
    const std::vector<int32_t>& ranks = i % 2 == 0 ? hosts.local_ranks() : hosts.peers();
    Level& level = levels[i / 2][i % 2];
    ENGINE_ASSIGN_OR_RETURN(level, Level::Make(host, plugin, label, ranks, rank.rank));
    const CommunicatorTraits made = level.communicator->traits();
    if ((~made.kinds & kit::kCollectives) != 0) {
      return Status::Error(StatusCode::kConfig,
                           "hier.%s: '%s' has not all of all-reduce, reduce-scatter, all-gather, "
                           "broadcast and barrier: choose another communicator",
                           option, plugin.c_str());
    }
    traits.dtypes &= made.dtypes;
    traits.no_op |= made.no_op;
    traits.device_memory &= made.device_memory;
  }
  std::unique_ptr<Communicator> all;
  if (traits.device_memory && hosts.count() > 1 && hosts.widest() > 1) {
    ENGINE_ASSIGN_OR_RETURN(all, kit::MakeInner(host, options.String("outer"), "all"));
  }
  auto made = std::make_unique<HierCommunicator>(host, rendezvous.prefix(), traits,
                                                 std::move(levels), std::move(all));
  ENGINE_RETURN_IF_ERROR(made->MakeLanes(hosts, static_cast<size_t>(options.Int("part_bytes")),
                                         traits.device_memory ? host.device() : nullptr));
  return made;
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "hier", out, [&] { return Make(host, options); });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "hier",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "one communicator inside of hosts, another between them, of which each rank has a part",
     .create = Create},
    NoOps(),
    std::array{kit::PluginOption("inner", "shm", "communicator", "for the ranks of a host"),
               kit::PluginOption("outer", "tcp", "communicator", "between hosts"),
               kit::IntOption("ranks_per_host", "0", 0, 1 << 20,
                              "so many consecutive ranks are a host; 0: what the launcher says"),
               kit::IntOption("lanes", "2", 1, 16,
                              "transfers that run at once, each over communicators of its own"),
               kit::IntOption("part_bytes", "262144", 1024, 1 << 30,
                              "of a rank, moved between hosts at once")});

}  // namespace engine::hier
