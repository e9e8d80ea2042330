#include "communicator.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kit/communicator.h"
#include "kit/describe.h"
#include "kit/reduce.h"
#include "kit/rendezvous.h"

namespace engine::gloo {
namespace {

// How long a transfer takes before its rank looks for the reason.
constexpr auto kStall = std::chrono::milliseconds(100);
// How long a rank whose transfer is overdue waits for the peers that may have begun it later.
constexpr auto kLateness = std::chrono::milliseconds(300);
// What the queue gives a transfer beyond its deadline: until then this file ends it.
constexpr int64_t kGraceMs = 2000;

// Gloo's writes to a broken connection raise SIGPIPE. While this lives the thread does not get it,
// nor do threads that it starts, and none is left behind.
class ScopedNoSigpipe {
 public:
  ScopedNoSigpipe() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~ScopedNoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  ScopedNoSigpipe(const ScopedNoSigpipe&) = delete;
  ScopedNoSigpipe& operator=(const ScopedNoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

void ThrowIfError(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// The store of the run as Gloo wants it.
class HostStore final : public ::gloo::rendezvous::Store {
 public:
  HostStore(Host& host, std::string prefix, kit::Clock::time_point deadline)
      : host_(host), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    ThrowIfError(kit::SetText(host_, prefix_ + key, {data.data(), data.size()}));
  }
  std::vector<char> get(const std::string& key) override {
    std::string text;
    ThrowIfError(host_.StoreGetString(prefix_ + key, kit::MillisecondsUntil(deadline_), &text));
    return {text.begin(), text.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }

 private:
  Host& host_;
  const std::string prefix_;
  const kit::Clock::time_point deadline_;
};

std::shared_ptr<::gloo::transport::Device> MakeDevice(const RankInfo& ranks,
                                                      const Settings& settings) {
  ::gloo::transport::tcp::attr attributes;
  attributes.iface = settings.interface;
  attributes.hostname = settings.hostname;
  const bool one_host = ranks.local_world_size == ranks.world_size;
  if (attributes.iface.empty() && attributes.hostname.empty() && one_host) {
    attributes.hostname = "127.0.0.1";
  }
  return ::gloo::transport::tcp::CreateDevice(attributes);
}

// Gloo's own text without "[file:line] " in front.
std::string_view Reason(const std::exception& error) {
  const std::string_view text = error.what();
  const size_t end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? text : text.substr(end + 2);
}

// Gloo matches messages by tag: ranks that are in different transfers wait, and never add up
// different things.
uint32_t TagOf(const Transfer& transfer) noexcept {
  const kit::TransferId id = kit::IdOf(transfer);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&id);
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof(id); ++i) hash = (hash ^ bytes[i]) * 0x9e3779b97f4a7c15u;
  return static_cast<uint32_t>(hash >> 32);
}

// Calls with a value of an unsigned type of the size of the elements.
template <typename Body>
void WithElement(DType dtype, const Body& body) {
  const size_t size = SizeOf(dtype);
  if (size == 1) return body(uint8_t{});
  if (size == 2) return body(uint16_t{});
  body(uint32_t{});
}

// The ring takes a step for each rank, bcube one for each power of two: with more than two ranks it
// is several times faster up to some hundred KiB, and as fast from some MiB on.
::gloo::AllreduceOptions::Algorithm Choose(std::string_view option, int ranks, size_t bytes) {
  constexpr size_t kBcubeUpToBytes = 1 << 20;
  const bool small = ranks > 2 && bytes <= kBcubeUpToBytes;
  const bool bcube = option == "bcube" || (option == "auto" && small);
  using Algorithm = ::gloo::AllreduceOptions::Algorithm;
  return bcube ? Algorithm::BCUBE : Algorithm::RING;
}

// Input and output of a collective; in place there is an output only.
template <typename Options>
void SetBuffers(Options& options, DType dtype, const void* send, size_t sent, void* recv,
                size_t received) {
  WithElement(dtype, [&](auto element) {
    using T = decltype(element);
    if (send) options.setInput(const_cast<T*>(static_cast<const T*>(send)), sent);
    options.setOutput(static_cast<T*>(recv), received);
  });
}

// Of the ranks from `first` on, the one that is not there; `first` if all are.
int32_t FirstMissing(const std::vector<bool>& there, int32_t first) noexcept {
  const auto ranks = static_cast<int32_t>(there.size());
  for (int32_t i = 0; i < ranks; ++i) {
    const int32_t rank = (first + i) % ranks;
    if (!there[static_cast<size_t>(rank)]) return rank;
  }
  return first;
}

}  // namespace

Result<std::unique_ptr<GlooCommunicator>> GlooCommunicator::Create(
    Host& host, const Settings& settings) noexcept {
  const RankInfo ranks = host.rank_info();
  try {
    std::string prefix;
    Lanes lanes;
    if (ranks.world_size > 1) {
      kit::Rendezvous rendezvous(host, settings.rendezvous_timeout_ms);
      ENGINE_RETURN_IF_ERROR(rendezvous.Begin());
      prefix = rendezvous.prefix();
      const std::string own = std::to_string(settings.lanes);
      ENGINE_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous.Exchange(own));
      for (const std::string& one : all) {
        if (one == own) continue;
        return Status::Error(StatusCode::kConfig,
                             "a rank has io_threads = %s and this one %s: give all ranks the same",
                             one.c_str(), own.c_str());
      }
      const ScopedNoSigpipe no_signal;  // for the thread of the device as well
      const auto device = MakeDevice(ranks, settings);
      for (int i = 0; i < settings.lanes; ++i) {
        auto& context = lanes.emplace_back(std::make_unique<Lane>())->context;
        context = std::make_shared<InterruptibleContext>(ranks.rank, ranks.world_size);
        // Gloo waits five times as long as it is told for a connection.
        const int64_t left_ms = kit::MillisecondsUntil(rendezvous.deadline());
        context->setTimeout(std::chrono::milliseconds(left_ms / 5 + 1));
        HostStore store(host, prefix + "/lane/" + std::to_string(i) + "/", rendezvous.deadline());
        context->Connect(store, device);
      }
    }
    return std::unique_ptr<GlooCommunicator>(
        new GlooCommunicator(host, settings, std::move(prefix), std::move(lanes)));
  } catch (const std::exception& error) {
    const std::string_view reason = Reason(error);
    return Status::Error(StatusCode::kRendezvous,
                         "Gloo cannot connect the ranks (%.*s): check the options interface '%s' "
                         "and hostname '%s' of gloo",
                         static_cast<int>(reason.size()), reason.data(), settings.interface.c_str(),
                         settings.hostname.c_str());
  }
}

GlooCommunicator::GlooCommunicator(Host& host, const Settings& settings, std::string prefix,
                                   Lanes lanes)
    : host_(host),
      ranks_(host.rank_info()),
      all_reduce_(settings.all_reduce),
      prefix_(std::move(prefix)),
      lanes_(std::move(lanes)),
      failure_(host, prefix_,
               [this](const Status&, bool) {
                 for (const auto& lane : lanes_) lane->context->interrupt().Raise();
                 for (const auto& lane : lanes_) lane->context->closeConnections();
               }),
      watcher_(lanes_.empty()
                   ? nullptr
                   : std::make_unique<kit::DeadlineWatcher>(
                         "gloo_stalls", [this](kit::Clock::time_point now) { return Look(now); })),
      queues_("gloo", static_cast<int>(lanes_.size()), {}, *this, failure_) {}

// Members go from the last to the first: queues_ joins the threads that use the contexts.
GlooCommunicator::~GlooCommunicator() {
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
}

CommunicatorTraits GlooCommunicator::traits() const noexcept {
  return {.kinds = kit::kCollectives,
          .dtypes = kit::kAllDTypes,
          .ordered = 1,
          .max_in_flight = queues_.count(),
          .no_op = 0};
}

Status GlooCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, "gloo", TransferKind::kBarrier));
  Transfer longer = transfer;
  longer.timeout_ms =
      std::min(transfer.timeout_ms, std::numeric_limits<int64_t>::max() - kGraceMs) + kGraceMs;
  return queues_.Submit(longer, out);
}

Status GlooCommunicator::Run(int number, kit::PooledWork& work) noexcept {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  Begin(number, work);
  work.MarkStarted();
  Status status;
  try {
    const ScopedNoSigpipe no_signal;
    RunCollective(lane, work.transfer());
  } catch (const std::exception& error) {
    if (failure_.raised()) {
      status = failure_.reason();
    } else {
      const int32_t lost = Lost();
      const int32_t peer = lost < 0 ? lane.context->interrupt().peer() : lost;
      const std::string_view reason = Reason(error);
      status = Status::Error(StatusCode::kPeerLost, "lost connection to rank %d (%.*s)", peer,
                             static_cast<int>(reason.size()), reason.data())
                   .WithRank(peer);
    }
  }
  End(number);
  return status;
}

int32_t GlooCommunicator::WaitingFor(int lane) const noexcept {
  return lanes_[static_cast<size_t>(lane)]->context->interrupt().peer();
}

// In place is what Gloo does with an output and no input.
void GlooCommunicator::RunCollective(Lane& lane, const Transfer& transfer) const {
  const auto count = static_cast<size_t>(transfer.count);
  const size_t bytes = count * SizeOf(transfer.dtype);
  const auto ranks = static_cast<size_t>(ranks_.world_size);
  const bool in_place = transfer.send == transfer.recv;
  if (transfer.kind == TransferKind::kBarrier) {
    ::gloo::BarrierOptions options(lane.context);
    options.setTag(TagOf(transfer));
    return ::gloo::barrier(options);
  }
  if (count == 0) return;
  if (transfer.kind == TransferKind::kAllReduce) {
    return AllReduce(lane, transfer, transfer.send, transfer.recv, transfer.count);
  }
  if (transfer.kind == TransferKind::kReduceScatter) {
    // Gloo has none that can be interrupted, nor one for any number of ranks.
    lane.scratch.resize(ranks * bytes);
    AllReduce(lane, transfer, transfer.send, lane.scratch.data(),
              transfer.count * ranks_.world_size);
    const auto rank = static_cast<size_t>(ranks_.rank);
    std::memcpy(transfer.recv, lane.scratch.data() + rank * bytes, bytes);
    return;
  }
  if (transfer.kind == TransferKind::kAllGather) {
    const auto* const own =
        static_cast<const std::byte*>(transfer.recv) + static_cast<size_t>(ranks_.rank) * bytes;
    ::gloo::AllgatherOptions options(lane.context);
    SetBuffers(options, transfer.dtype, transfer.send == own ? nullptr : transfer.send, count,
               transfer.recv, count * ranks);
    options.setTag(TagOf(transfer));
    return ::gloo::allgather(options);
  }
  ENGINE_CHECK(transfer.kind == TransferKind::kBroadcast);
  // The root may want no copy.
  const bool is_root = transfer.root == ranks_.rank;
  const bool copies = is_root && transfer.recv && !in_place;
  ::gloo::BroadcastOptions options(lane.context);
  SetBuffers(options, transfer.dtype, copies ? transfer.send : nullptr, count,
             is_root && !copies ? const_cast<void*>(transfer.send) : transfer.recv, count);
  options.setRoot(transfer.root);
  options.setTag(TagOf(transfer));
  ::gloo::broadcast(options);
}

void GlooCommunicator::AllReduce(Lane& lane, const Transfer& transfer, const void* send, void* recv,
                                 int64_t count) const {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer.dtype, transfer.reduction);
  const auto elements = static_cast<size_t>(count);
  ::gloo::AllreduceOptions options(lane.context);
  SetBuffers(options, transfer.dtype, send == recv ? nullptr : send, elements, recv, elements);
  options.setReduceFunction(kernels.combine);
  options.setAlgorithm(Choose(all_reduce_, ranks_.world_size, elements * SizeOf(transfer.dtype)));
  options.setTag(TagOf(transfer));
  ::gloo::allreduce(options);
}

// Gloo compares nothing, and does not tell a send that its connection has failed. So a rank looks
// when a transfer takes long:
//
//   <prefix>/at/<lane>/<rank> := TransferId, or nothing when that has ended
//
// Each puts its own there before it looks at those of the others, so of two ranks in different
// transfers at least one sees it. It fails, and the others learn of it as of any failure.
//
// A connection is only closed after the cause is in the store (kit::Failure), or by a death.
void GlooCommunicator::Begin(int number, const kit::PooledWork& work) noexcept {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  const kit::Clock::time_point now = kit::Clock::now();
  const kit::Clock::time_point deadline = work.deadline() - std::chrono::milliseconds(kGraceMs);
  {
    const std::lock_guard lock(lane.mutex);
    lane.running = true;
    lane.transfer = work.transfer();
    lane.started = now;
    lane.deadline = deadline;
  }
  watcher_->Watch(std::min(now + kStall, deadline));
}

void GlooCommunicator::End(int number) noexcept {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  const std::lock_guard lock(lane.mutex);
  lane.running = false;
  if (lane.published) (void)host_.StoreSet(StallKey(number, ranks_.rank), {});
  lane.published = false;
}

kit::Clock::time_point GlooCommunicator::Look(kit::Clock::time_point now) noexcept {
  kit::Clock::time_point next = kit::Clock::time_point::max();
  try {
    for (int i = 0; i < static_cast<int>(lanes_.size()) && !failure_.raised(); ++i) {
      const Status status = LookAt(i, now, &next);
      if (!status.ok()) (void)failure_.Fail(status);
    }
  } catch (const std::exception&) {
    return now + kStall;  // no memory: again
  }
  return next;
}

Status GlooCommunicator::LookAt(int number, kit::Clock::time_point now,
                                kit::Clock::time_point* next) {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  Transfer transfer;
  kit::Clock::time_point deadline;
  bool first = false;
  {
    const std::lock_guard lock(lane.mutex);
    if (!lane.running) return {};
    deadline = lane.deadline;
    const kit::Clock::time_point stalled = std::min(lane.started + kStall, deadline);
    *next = std::min(*next, now < stalled ? stalled : now + kStall);
    if (now < deadline) *next = std::min(*next, deadline);
    if (now < stalled) return {};
    transfer = lane.transfer;
    first = !lane.published;
    if (first) {
      const kit::TransferId own = kit::IdOf(transfer);
      (void)host_.StoreSet(StallKey(number, ranks_.rank),
                           {reinterpret_cast<const uint8_t*>(&own), sizeof(own)});
      lane.published = true;
    }
  }
  const std::string what = kit::Describe(transfer).c_str();
  if (const int32_t lost = Lost(); lost >= 0) {
    return Status::Error(StatusCode::kPeerLost, "lost connection to rank %d", lost)
        .WithRank(lost)
        .WithContext("%s", what.c_str());
  }
  if (!first && now < deadline) return {};
  if (first) lane.there.assign(static_cast<size_t>(ranks_.world_size), false);
  lane.there[static_cast<size_t>(ranks_.rank)] = true;
  const Status status = Compare(number, kit::IdOf(transfer), &lane.there);
  if (!status.ok()) return status.WithContext("%s", what.c_str());
  // Until then peers may have begun it later. One that was there counts also when it has failed
  // since, as it does for the same reason at the same time.
  if (now < deadline + kLateness) return {};
  return Overdue(number, transfer).WithContext("%s", what.c_str());
}

// Blames the first rank that was never there, from the one on that this rank waits for.
Status GlooCommunicator::Overdue(int number, const Transfer& transfer) const noexcept {
  const std::vector<bool>& there = lanes_[static_cast<size_t>(number)]->there;
  const int32_t peer = FirstMissing(there, std::max(WaitingFor(number), 0));
  return Status::Error(StatusCode::kTimeout, "not done within %lld ms: still waiting for rank %d",
                       static_cast<long long>(transfer.timeout_ms - kGraceMs), peer)
      .WithRank(peer);
}

Status GlooCommunicator::Compare(int number, const kit::TransferId& own,
                                 std::vector<bool>* there) noexcept {
  for (int32_t peer = 0; peer < ranks_.world_size; ++peer) {
    if (peer == ranks_.rank) continue;
    const std::string key = StallKey(number, peer);
    bool exists = false;
    std::string text;
    kit::TransferId theirs;
    if (!host_.StoreHas(key, &exists).ok() || !exists) continue;
    if (!host_.StoreGetString(key, 1, &text).ok() || text.size() != sizeof(theirs)) continue;
    std::memcpy(&theirs, text.data(), sizeof(theirs));
    // One that is ahead or behind is in another transfer by right.
    if (theirs.sequence == own.sequence && !kit::Agree(own, theirs))
      return kit::Disagreement(own, theirs, peer);
    if (theirs.sequence >= own.sequence) (*there)[static_cast<size_t>(peer)] = true;
  }
  return {};
}

// One that has left no cause is dead. Otherwise all have followed another, which kit::Failure finds
// in the cause of the first.
int32_t GlooCommunicator::Lost() noexcept {
  int32_t lost = -1;
  for (const auto& lane : lanes_) {
    for (const int peer : lane->context->BrokenPeers()) {
      bool gave_cause = false;
      const std::string key = prefix_ + "/cause/" + std::to_string(peer);
      if (!host_.StoreHas(key, &gave_cause).ok() || !gave_cause) return peer;
      if (lost < 0) lost = peer;
    }
  }
  return lost;
}

std::string GlooCommunicator::StallKey(int number, int32_t rank) const {
  return prefix_ + "/at/" + std::to_string(number) + "/" + std::to_string(rank);
}

}  // namespace engine::gloo
