// my_plugin: ranks exchange what they have in the key-value store of their Host. That is slow; it
// shows what a communicator is, and StoreTransport::Run is where your network goes.
//
//   <prefix>/<n mod 2>/<rank> := n TransferId contribution     by each rank, for its n-th transfer
//   <prefix>/left/<rank> :=                                    has failed, or is gone
//
// Every rank reads what all have written, in the order of ranks, so that all get the same bits. Who
// has read all of transfer n knows that all have done with n - 1: it empties its value of that, and
// writes n + 1 to the same key. So the store does not grow with the number of transfers.
#include "kit/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/plugin.h"
#include "kit/failure.h"
#include "kit/lanes.h"
#include "kit/progress.h"
#include "kit/reduce.h"
#include "kit/rendezvous.h"

namespace engine {
namespace {

class StoreTransport final : public kit::Transport {
 public:
  StoreTransport(Host& host, std::string prefix, kit::Failure& failure, kit::Progress& progress)
      : host_(host), prefix_(std::move(prefix)), failure_(failure), progress_(progress) {}

  // One transfer after another, on a thread of its own, the same ones on all ranks.
  Status Run(kit::PooledWork& work) noexcept override {
    try {
      return Exchange(work);
    } catch (const std::exception&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    }
  }
  int32_t WaitingFor() const noexcept override { return waiting_for_; }

 private:
  Status Exchange(kit::PooledWork& work) {
    const Transfer& t = work.transfer();
    const kit::TransferId own = kit::IdOf(t);
    const bool sends = t.kind != TransferKind::kBroadcast || t.root == ranks_.rank;
    const int32_t slices = t.kind == TransferKind::kReduceScatter ? ranks_.world_size : sends;
    std::string value(reinterpret_cast<const char*>(&number_), sizeof number_);
    value.append(reinterpret_cast<const char*>(&own), sizeof own);
    if (t.send)
      value.append(static_cast<const char*>(t.send),
                   static_cast<size_t>(slices) * kit::SizeBytes(t));
    work.MarkStarted();
    ENGINE_RETURN_IF_ERROR(kit::SetText(host_, Key(number_, ranks_.rank), value));
    for (int32_t rank = 0; rank < ranks_.world_size; ++rank) {
      ENGINE_RETURN_IF_ERROR(Await(rank, &value));
      kit::TransferId theirs;
      std::memcpy(&theirs, value.data() + sizeof number_, sizeof theirs);
      if (!kit::Agree(own, theirs)) return kit::Disagreement(own, theirs, rank);
      Take(t, rank, value.data() + sizeof number_ + sizeof theirs);
      progress_.Moved(value.size());
    }
    if (number_ > 0) (void)kit::SetText(host_, Key(number_ - 1, ranks_.rank), "");
    ++number_;
    return {};
  }

  // The contribution of `rank` to what this rank gets.
  void Take(const Transfer& t, int32_t rank, const char* data) {
    const size_t size = kit::SizeBytes(t), at = static_cast<size_t>(rank) * size;
    if (t.kind == TransferKind::kAllGather)
      std::memcpy(static_cast<char*>(t.recv) + at, data, size);
    if (t.kind == TransferKind::kBroadcast && t.root == rank && t.recv) {
      std::memcpy(t.recv, data, size);
    }
    const bool scatters = t.kind == TransferKind::kReduceScatter;
    if (t.kind != TransferKind::kAllReduce && !scatters) return;
    if (scatters) data += static_cast<size_t>(ranks_.rank) * size;
    const kit::ReduceKernels& kernels = kit::kReduceKernels.For(t.dtype, t.reduction);
    const auto count = static_cast<size_t>(t.count);
    sum_.resize(count * kit::kMaxAccumulatorBytes);
    (rank == 0 ? kernels.load : kernels.fold)(sum_.data(), data, count);
    if (rank == ranks_.world_size - 1) kernels.store(t.recv, sum_.data(), count);
  }

  // The value of this transfer. The store tells nobody that a key has a new one: this looks again,
  // less and less often. Without a limit of its own: when a transfer is late the kit raises the
  // failure.
  Status Await(int32_t rank, std::string* value) {
    using std::chrono::microseconds;
    constexpr int64_t kLookMs = 100;
    waiting_for_ = rank;
    uint32_t left = 0;  // seen before the last look: what it wrote until then counts
    for (microseconds pause(20);; pause = std::min(2 * pause, microseconds(5000))) {
      if (failure_.raised()) return failure_.reason();
      const Status found = StoreGetString(host_, Key(number_, rank), kLookMs, value);
      if (found.ok() && IsOfThisTransfer(*value)) return {};
      if (!found.ok() && found.code() != StatusCode::kTimeout) return found;
      if (left) {
        return Status::Error(StatusCode::kPeerLost, "rank %d has left", rank).WithRank(rank);
      }
      ENGINE_RETURN_IF_ERROR(host_.StoreHas(prefix_ + "/left/" + std::to_string(rank), &left));
      std::this_thread::sleep_for(pause);
    }
  }

  bool IsOfThisTransfer(const std::string& value) const {
    uint64_t number = 0;
    if (value.size() < sizeof number + sizeof(kit::TransferId)) return false;
    std::memcpy(&number, value.data(), sizeof number);
    return number == number_;
  }

  std::string Key(uint64_t number, int32_t rank) const {
    return prefix_ + "/" + std::to_string(number % 2) + "/" + std::to_string(rank);
  }

  Host& host_;
  const RankInfo ranks_ = host_.rank_info();
  const std::string prefix_;
  kit::Failure& failure_;
  kit::Progress& progress_;
  uint64_t number_ = 0;    // of the transfer
  std::vector<char> sum_;  // of contributions so far
  std::atomic<int32_t> waiting_for_{-1};
};

class StoreCommunicator final : public CommunicatorBase {
 public:
  StoreCommunicator(Host& host, const std::string& prefix)
      : ranks_(host.rank_info()),
        progress_(host, prefix),
        failure_(host, prefix,
                 [&host, key = prefix + "/left/" + std::to_string(ranks_.rank)](
                     const Status&, bool) { (void)kit::SetText(host, key, ""); }),
        lanes_("my_plugin", MakeLanes(host, prefix), {}, failure_, progress_) {}
  ~StoreCommunicator() override {
    Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
  }

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = kit::kCollectives, .dtypes = kit::kAllDTypes, .max_in_flight = 1};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(
        kit::CheckTransfer(transfer, ranks_, "my_plugin", TransferKind::kBarrier));
    return lanes_.Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override { failure_.Abort(reason); }

 private:
  // A world of one has none: its transfers are copies.
  kit::Transports MakeLanes(Host& host, const std::string& prefix) {
    kit::Transports lanes;
    if (ranks_.world_size == 1) return lanes;
    lanes.push_back(std::make_unique<StoreTransport>(host, prefix, failure_, progress_));
    return lanes;
  }

  const RankInfo ranks_;
  kit::Progress progress_;
  kit::Failure failure_;
  kit::Lanes lanes_;  // ends first
};

StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  const auto make = [&]() -> Result<std::unique_ptr<StoreCommunicator>> {
    kit::Rendezvous rendezvous(host);
    ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
    ENGINE_RETURN_IF_ERROR(rendezvous.Exchange("").status());
    return std::make_unique<StoreCommunicator>(host, rendezvous.prefix());
  };
  return kit::CreateCommunicator(host, "my_plugin", out, make);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "my_plugin",
                    .version = "0.1.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "exchanges gradients in the store of the run",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace engine
