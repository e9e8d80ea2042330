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
#include "kit/communicator.h"
#include "kit/failure.h"
#include "kit/inner_communicator.h"
#include "kit/lanes.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/rendezvous.h"
#include "pipeline.h"

namespace engine::hier {
namespace {

class HierCommunicator final : public CommunicatorBase {
 public:
  HierCommunicator(Host& host, const std::string& prefix, const CommunicatorTraits& traits,
                   const Hosts& hosts, std::vector<Levels> levels, size_t part_bytes)
      : ranks_(host.rank_info()),
        traits_(traits),
        levels_(std::move(levels)),
        failure_(host, prefix,
                 [this](const Status& reason, bool) {
                   for (const auto& [inner, outer] : levels_) {
                     inner.communicator->Abort(reason);
                     outer.communicator->Abort(reason);
                   }
                 }),
        progress_(host, prefix),
        lanes_("hier", MakeLanes(hosts, part_bytes), std::chrono::microseconds(0), failure_,
               progress_) {}
  // Members go from the last to the first: lanes_ joins the threads that use the others.
  ~HierCommunicator() override {
    Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  }

  // Memory of a host's ranks is that of the first lane; the others copy it.
  void* Query(std::string_view id) noexcept override {
    if (id == WireProgress::kId) return static_cast<WireProgress*>(&progress_);
    return id == SharedMemory::kId ? levels_[0][0].communicator->Query(id, 0) : nullptr;
  }
  CommunicatorTraits traits() const noexcept override { return traits_; }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, "hier", TransferKind::kBarrier));
    return lanes_.Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  kit::Transports MakeLanes(const Hosts& hosts, size_t part_bytes) {
    kit::Transports lanes;
    for (const Levels& lane : levels_) {
      if (ranks_.world_size == 1) break;
      lanes.push_back(std::make_unique<Pipeline>(hosts, lane, part_bytes, failure_, progress_));
    }
    return lanes;
  }

  const RankInfo ranks_;
  const CommunicatorTraits traits_;
  const std::vector<Levels> levels_;  // of each lane
  kit::Failure failure_;
  kit::Progress progress_;
  kit::Lanes lanes_;  // uses all of the above
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
                            .max_in_flight = static_cast<uint32_t>(levels.size())};
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
  }
  return std::make_unique<HierCommunicator>(host, rendezvous.prefix(), traits, hosts,
                                            std::move(levels),
                                            static_cast<size_t>(options.Int("part_bytes")));
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
