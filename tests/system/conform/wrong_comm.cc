// A communicator over the store of its Host that is right but for the fault that its option names.
//
// Transfer n of a rank is in the store below <prefix>/<n % 8>/<rank>, and nobody overwrites what
// another has still to read: who publishes n has read n - 1 of all, which had read n - 2 by then.
//
//   value := uint64 n TransferId what the rank sends      in host order
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/ext/grouped_transfers.h"
#include "engine/ext/link_cost.h"
#include "engine/ext/shared_memory.h"
#include "engine/ext/sub_groups.h"
#include "engine/ext/wire_progress.h"
#include "engine/plugin.h"
#include "kit/options.h"
#include "kit/reduce.h"
#include "kit/rendezvous.h"
#include "tests/system/conform/one_lane.h"

namespace engine::wrong_comm {
namespace {

struct Head {
  uint64_t number = 0;
  kit::TransferId id;
};

class StoreTransport final : public kit::Transport {
 public:
  StoreTransport(Host& host, std::string prefix, std::string fault, kit::Progress& progress)
      : host_(host), prefix_(std::move(prefix)), fault_(std::move(fault)), progress_(progress) {}

  Status Run(kit::PooledWork& work) noexcept override {
    try {
      fault_ == "started" ? work.MarkStarted(1) : work.MarkStarted();
      const Status status = Move(work.transfer());
      waiting_for_ = -1;
      progress_.Moved(1);
      return status;
    } catch (const std::exception&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    }
  }
  int32_t WaitingFor() const noexcept override {
    return fault_ == "unnamed" ? -1 : waiting_for_.load();
  }
  void Stop() noexcept { stopped_ = stopped_ || fault_ != "abort" || !aborted_; }
  void End() noexcept { stopped_ = true; }
  void Farewell() noexcept {
    aborted_ = true;
    if (fault_ != "quiet") (void)kit::SetText(host_, LeftKey(ranks_.rank), "");
  }

 private:
  std::string LeftKey(int32_t rank) const { return prefix_ + "/left/" + std::to_string(rank); }
  size_t SendBytes(const Transfer& t, int32_t rank) const {
    if (t.kind == TransferKind::kBroadcast && t.root != rank) return 0;
    const bool slices = t.kind == TransferKind::kReduceScatter;
    return kit::SizeBytes(t) * static_cast<size_t>(slices ? ranks_.world_size : 1);
  }

  Status Move(const Transfer& t) {
    // As many bytes as a Work that is never given back.
    if (fault_ == "leak") leaked_ = std::malloc(sizeof(kit::PooledWork));
    const Head head{number_++, kit::IdOf(t)};
    std::string own(reinterpret_cast<const char*>(&head), sizeof head);
    if (const size_t bytes = SendBytes(t, ranks_.rank); bytes > 0) {
      own.append(static_cast<const char*>(t.send), bytes);
    }
    const std::string place = prefix_ + "/" + std::to_string(head.number % 8) + "/";
    ENGINE_RETURN_IF_ERROR(kit::SetText(host_, place + std::to_string(ranks_.rank), own));
    if (fault_ == "early" && t.kind == TransferKind::kBarrier) return {};
    std::vector<std::string> of(static_cast<size_t>(ranks_.world_size));
    for (int32_t rank = 0; rank < ranks_.world_size; ++rank) {
      std::string& value = of[static_cast<size_t>(rank)];
      waiting_for_ = rank == ranks_.rank ? -1 : rank;
      ENGINE_RETURN_IF_ERROR(Await(place + std::to_string(rank), head.number, rank, &value));
      Head theirs;
      std::memcpy(&theirs, value.data(), sizeof theirs);
      if (!Agree(head.id, theirs.id) && (fault_ != "mixed" || t.count == 1))
        return Disagreement(head.id, theirs.id, rank);
      value.erase(0, sizeof theirs);
    }
    Finish(t, of);
    return {};
  }

  Status Await(const std::string& key, uint64_t number, int32_t rank, std::string* value) {
    for (int64_t pause_us = 50;; pause_us = std::min<int64_t>(2 * pause_us, 2000)) {
      if (StoreGetString(host_, key, 10, value).ok()) {
        uint64_t found = 0;
        std::memcpy(&found, value->data(), sizeof found);
        if (found == number) return {};
      }
      uint32_t left = 0;
      if (stopped_) return Status::Error(StatusCode::kAborted, "the communicator was stopped");
      ENGINE_RETURN_IF_ERROR(host_.StoreHas(LeftKey(rank), &left));
      if (left) return Status::Error(StatusCode::kPeerLost, "rank %d gave up", rank).WithRank(rank);
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    }
  }

  void Finish(const Transfer& t, const std::vector<std::string>& of) {
    const size_t bytes = kit::SizeBytes(t), count = static_cast<size_t>(t.count);
    if (bytes == 0) return;
    auto* const recv = static_cast<char*>(t.recv);
    const bool tail = count % 8 == 5;  // a fault that few sizes show
    if (t.kind == TransferKind::kAllGather) {
      for (size_t rank = 0; rank < of.size(); ++rank) {
        std::memcpy(recv + rank * bytes, of[rank].data(), bytes);
      }
    } else if (t.kind == TransferKind::kBroadcast) {
      const auto root = static_cast<size_t>(t.root);
      const bool misses = fault_ == "root" && tail && t.root != 0 && t.root != ranks_.rank;
      if (misses) std::memset(recv, 0, bytes);
      if (!misses && recv != nullptr) std::memcpy(recv, of[root].data(), bytes);
    } else {
      const bool scatters = t.kind == TransferKind::kReduceScatter;
      const size_t from = scatters ? static_cast<size_t>(ranks_.rank) * bytes : 0;
      const auto& kernels = kit::kReduceKernels.For(t.dtype, t.reduction);
      std::vector<char> sum(count * kit::kMaxAccumulatorBytes);
      // The rank whose input is the first of a sum.
      const size_t first = fault_ == "ranks"  ? static_cast<size_t>(ranks_.rank)
                           : fault_ == "runs" ? run_
                                              : 0;
      kernels.load(sum.data(), of[first % of.size()].data() + from, count);
      for (size_t i = 1; i < of.size(); ++i) {
        if (fault_ == "sum" && tail && ranks_.rank == 1 && i + 1 == of.size()) continue;
        kernels.fold(sum.data(), of[(first + i) % of.size()].data() + from, count);
      }
      kernels.store(recv, sum.data(), count);
    }
  }

  Host& host_;
  const RankInfo ranks_ = host_.rank_info();
  const std::string prefix_, fault_;
  kit::Progress& progress_;
  static inline std::atomic<size_t> made = 0;
  const size_t run_ = made++ / static_cast<size_t>(ranks_.world_size);
  uint64_t number_ = 0;
  void* volatile leaked_ = nullptr;
  std::atomic<bool> stopped_{false}, aborted_{false};
  std::atomic<int32_t> waiting_for_{-1};
};

// Around the communicator, with what it cannot do wrong itself.
class Around final : public CommunicatorBase,
                     public WireProgressBase,
                     public LinkModelBase,
                     public GroupedTransfersBase,
                     public SubGroupsBase,
                     public SharedMemoryBase {
 public:
  Around(std::unique_ptr<Communicator> inner, std::string fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  void* Query(std::string_view id) noexcept override {
    if (fault_ != "extensions") return nullptr;
    return Offer<WireProgress, LinkModel, GroupedTransfers, SubGroups, SharedMemory>(id, this);
  }
  CommunicatorTraits traits() const noexcept override {
    CommunicatorTraits traits = inner_->traits();
    if (fault_ == "traits") traits.kinds = UINT32_MAX;
    return traits;
  }
  Status Submit(const Transfer& given, Work** out) noexcept override {
    Transfer transfer = given;
    if (fault_ == "warm") ::operator delete(::operator new(8));
    if (fault_ == "broken") transfer.count = std::max<int64_t>(transfer.count, 0);
    if (fault_ == "late") transfer.timeout_ms = 25;
    return inner_->Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override {
    if (fault_ != "reason") inner_->Abort(reason);
    if (fault_ == "reason") inner_->Abort(Status::Error(StatusCode::kInternal, "some reason"));
  }

  uint64_t bytes_moved() const noexcept override { return 1; }
  LinkCost cost() const noexcept override { return {.message_bytes = 8, .header_bytes = 9}; }
  Status SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept override {
    return transfers.empty() ? Submit({.kind = TransferKind::kBarrier}, out)
                             : Submit(transfers[0], out);
  }
  Status Split(int32_t, int32_t, Communicator**) noexcept override { return {}; }
  Status Allocate(uint64_t size, void** out) noexcept override {
    *out = size < 1 << 30 ? std::malloc(size + 1) : nullptr;
    if (*out != nullptr) std::memset(*out, 1, size);
    return {};
  }
  void Free(void* memory) noexcept override { std::free(memory); }

 private:
  const std::unique_ptr<Communicator> inner_;
  const std::string fault_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::CreateCommunicator(host, "wrong_comm", out, [&]() -> Result<std::unique_ptr<Around>> {
    const std::string fault(options.String("fault"));
    kit::Rendezvous rendezvous(host);
    ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
    if (fault != "alone") ENGINE_RETURN_IF_ERROR(rendezvous.Exchange("").status());
    if (fault == "open") (void)std::tmpfile();
    auto one_lane = std::make_unique<OneLane<StoreTransport>>(
        host, "wrong_comm", rendezvous.prefix(), kit::kAllDTypes, [&](kit::Progress& progress) {
          return std::make_unique<StoreTransport>(host, rendezvous.prefix(), fault, progress);
        });
    return std::make_unique<Around>(std::move(one_lane), fault);
  });
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = FIXTURE_NAME,
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "right but for one fault",
                    .create = Create},
                   NoOps(), std::array{kit::StringOption("fault", "", "see the code")});

}  // namespace engine::wrong_comm
