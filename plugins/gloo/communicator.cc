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

// How long a transfer that has failed looks for the reason in the store, and how long the cause of
// a peer may take: that peer looks, too.
constexpr int64_t kExplainMs = 1000;
constexpr int64_t kCauseMs = 2 * kExplainMs;
// What Lanes gives a transfer beyond its deadline, at which Gloo's waits end by themselves.
constexpr int64_t kGraceMs = 2 * kExplainMs;

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
::gloo::AllreduceOptions::Algorithm Choose(AllReduceChoice choice, int ranks, size_t bytes) {
  constexpr size_t kBcubeUpToBytes = 1 << 20;
  const bool small = ranks > 2 && bytes <= kBcubeUpToBytes;
  if (choice == AllReduceChoice::kAuto)
    choice = small ? AllReduceChoice::kBcube : AllReduceChoice::kRing;
  using Algorithm = ::gloo::AllreduceOptions::Algorithm;
  return choice == AllReduceChoice::kBcube ? Algorithm::BCUBE : Algorithm::RING;
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

}  // namespace

Result<std::unique_ptr<GlooCommunicator>> GlooCommunicator::Create(
    Host& host, const Settings& settings) noexcept {
  const RankInfo ranks = host.rank_info();
  try {
    std::string prefix;
    std::vector<Lane> lanes;
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
        auto& context = lanes.emplace_back().context;
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
                                   std::vector<Lane> lanes)
    : host_(host),
      ranks_(host.rank_info()),
      all_reduce_(settings.all_reduce),
      prefix_(std::move(prefix)),
      lanes_(std::move(lanes)),
      failure_(host, prefix_,
               [this](const Status&, bool) {
                 for (const Lane& lane : lanes_) lane.context->interrupt().Raise();
                 for (const Lane& lane : lanes_) lane.context->closeConnections();
               }),
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

// Gloo's waits end at the transfer's deadline, kGraceMs before that of the queue: so this thread finds
// the reason, and the watcher of the queue is only needed where something hangs without waiting.
Status GlooCommunicator::Run(int number, kit::PooledWork& work) noexcept {
  Lane& lane = lanes_[static_cast<size_t>(number)];
  const kit::Clock::time_point deadline = work.deadline() - std::chrono::milliseconds(kGraceMs);
  lane.context->interrupt().SetDeadline(deadline);
  work.MarkStarted();
  try {
    const ScopedNoSigpipe no_signal;
    RunCollective(lane, work.transfer());
    return {};
  } catch (const std::exception& error) {
    if (failure_.raised()) return failure_.reason();
    const int peer = lane.context->interrupt().peer();
    const std::string_view reason = Reason(error);
    const Status found =
        kit::Clock::now() >= deadline
            ? Status::Error(StatusCode::kTimeout, "not done within %lld ms",
                            static_cast<long long>(work.transfer().timeout_ms - kGraceMs))
            : Status::Error(StatusCode::kPeerLost, "lost connection to rank %d (%.*s)", peer,
                            static_cast<int>(reason.size()), reason.data());
    return Explain(number, work.transfer(), found.WithRank(peer));
  }
}

int32_t GlooCommunicator::WaitingFor(int lane) const noexcept {
  return lanes_[static_cast<size_t>(lane)].context->interrupt().peer();
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

// A rank whose wait has failed leaves in the store what it was in, and looks what others left:
//
//   <prefix>/at/<lane>/<rank> := TransferId
//
// Who leaves nothing in time is the one that all wait for, or dead. Who is in another transfer was
// given another one. Anyone else has a cause of its own, for which kit::Failure looks.
Status GlooCommunicator::Explain(int lane, const Transfer& transfer, const Status& error) noexcept {
  const kit::TransferId own = kit::IdOf(transfer);
  const std::string topic = prefix_ + "/at/" + std::to_string(lane) + "/";
  (void)host_.StoreSet(topic + std::to_string(ranks_.rank),
                       {reinterpret_cast<const uint8_t*>(&own), sizeof(own)});
  const kit::Clock::time_point deadline = kit::DeadlineIn(kExplainMs);
  const bool lost = error.code() == StatusCode::kPeerLost;
  for (int distance = 0; distance < ranks_.world_size; ++distance) {
    const int peer = (std::max(error.rank(), 0) + distance) % ranks_.world_size;
    if (peer == ranks_.rank) continue;
    const std::string cause = prefix_ + "/cause/" + std::to_string(peer);
    bool knows = false;
    if (lost && host_.StoreHas(cause, &knows).ok() && knows) return error;
    std::string text;
    const int64_t left_ms = std::max<int64_t>(kit::MillisecondsUntil(deadline), 1);
    if (!host_.StoreGetString(topic + std::to_string(peer), left_ms, &text).ok() ||
        text.size() != sizeof(kit::TransferId)) {
      if (lost) return error;
      return Status::Error(error.code(), "%s: still waiting for rank %d", error.message(), peer)
          .WithRank(peer);
    }
    kit::TransferId theirs;
    std::memcpy(&theirs, text.data(), sizeof(theirs));
    // One that is ahead or behind is in another transfer by right.
    if (theirs.sequence == own.sequence && !kit::Agree(own, theirs)) {
      return kit::Disagreement(own, theirs, peer);
    }
    if (!lost) continue;
    (void)host_.StoreGetString(cause, kCauseMs, &text);
    return error;
  }
  return error;
}

}  // namespace engine::gloo
