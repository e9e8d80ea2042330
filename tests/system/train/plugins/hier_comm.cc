// hier_comm: all-reduces inside of groups of consecutive ranks, then between those that have the same
// place in their groups; everything else among all ranks. It waits for the first half in Submit.
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/ext/inner_plugins.h"
#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine::hier_comm {
namespace {

class HierComm final : public CommunicatorBase {
 public:
  Status Make(Host& host, const Options& options) {
    auto* const plugins = engine::Query<InnerPlugins>(host);
    const RankInfo all = host.rank_info();
    const auto size = static_cast<int32_t>(options.Int("group"));
    std::vector<int32_t> inside(static_cast<size_t>(size)), between;
    std::iota(inside.begin(), inside.end(), all.rank / size * size);
    for (int32_t r = all.rank % size; r < all.world_size; r += size) between.push_back(r);
    const auto make = [&](std::string_view label, std::string_view plugin,
                          const std::vector<int32_t>& ranks, std::unique_ptr<Communicator>* made) {
      Communicator* communicator = nullptr;
      ENGINE_RETURN_IF_ERROR(
          plugins->CreateCommunicator({.plugin = plugin, .label = label}, ranks, &communicator));
      made->reset(communicator);
      return Status();
    };
    ENGINE_RETURN_IF_ERROR(make("whole", options.String("between"), {}, &whole_));
    ENGINE_RETURN_IF_ERROR(make("inside", options.String("inside"), inside, &inside_));
    return make("between", options.String("between"), between, &between_);
  }

  CommunicatorTraits traits() const noexcept override { return whole_->traits(); }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    if (transfer.kind != TransferKind::kAllReduce) return whole_->Submit(transfer, out);
    ENGINE_RETURN_IF_ERROR(inside_->Submit(transfer, out));
    const Status status = (*out)->WaitHost(2 * transfer.timeout_ms);
    std::exchange(*out, nullptr)->Release();
    ENGINE_RETURN_IF_ERROR(status);
    Transfer second = transfer;
    second.send = transfer.recv;
    return between_->Submit(second, out);
  }
  void Abort(const Status& reason) noexcept override {
    for (const auto* one : {&whole_, &inside_, &between_}) (*one)->Abort(reason);
  }

 private:
  std::unique_ptr<Communicator> whole_, inside_, between_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  auto made = std::make_unique<HierComm>();
  ENGINE_RETURN_IF_ERROR(made->Make(host, options));
  *out = made.release();
  return {};
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "hier_comm",
     .version = "1.0.0",
     .kind = PluginKind::kCommunicator,
     .doc = "all-reduces inside and between groups of ranks",
     .create = Create},
    NoOps(),
    std::array{kit::IntOption("group", "2", 1, 64, "ranks of a group"),
               kit::PluginOption("inside", "shm", "communicator", "for the ranks of a group"),
               kit::PluginOption("between", "tcp", "communicator", "for all else")});

}  // namespace engine::hier_comm
