#include "communicator.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "kit/communicator.h"
#include "kit/reduce.h"

namespace engine::gloo {
namespace {

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

int LanesOf(const tcp::Connections* connections) {
  return connections ? connections->lanes() : 0;
}

}  // namespace

GlooCommunicator::Lane::Lane(tcp::Connections& connections, int number, kit::Progress& progress)
    : transport(std::make_shared<gloo::Transport>(connections, number, progress)),
      context(std::make_shared<Context>(connections.ranks(), transport)) {}

Result<std::unique_ptr<GlooCommunicator>> GlooCommunicator::Create(
    Host& host, const tcp::NetworkSettings& network, std::string all_reduce) {
  std::unique_ptr<tcp::Connections> connections;
  if (host.rank_info().world_size > 1) {
    ENGINE_ASSIGN_OR_RETURN(connections, tcp::Connections::Open(host, network));
  }
  return std::unique_ptr<GlooCommunicator>(
      new GlooCommunicator(host, std::move(all_reduce), std::move(connections)));
}

GlooCommunicator::GlooCommunicator(Host& host, std::string all_reduce,
                                   std::unique_ptr<tcp::Connections> connections)
    : ranks_(host.rank_info()),
      all_reduce_(std::move(all_reduce)),
      connections_(std::move(connections)),
      failure_(host, connections_ ? connections_->prefix() : std::string(),
               [this](const Status&, bool) {
                 if (connections_) connections_->Shutdown();
               }),
      progress_(host, connections_ ? connections_->prefix() : std::string()),
      queues_("gloo", LanesOf(connections_.get()), {}, *this, failure_, progress_) {
  // Nothing runs before the first Submit.
  for (int lane = 0; lane < LanesOf(connections_.get()); ++lane) {
    lanes_.push_back(std::make_unique<Lane>(*connections_, lane, progress_));
  }
}

// Members go from the last to the first: queues_ joins the threads that use the others.
GlooCommunicator::~GlooCommunicator() {
  Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
}

void* GlooCommunicator::Query(std::string_view id) noexcept {
  return id == kWireProgressId ? static_cast<WireProgress*>(&progress_) : nullptr;
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
  return queues_.Submit(transfer, out);
}

// One thread at a time for each lane (kit/lanes.h): a lane needs no lock.
Status GlooCommunicator::Run(int number, kit::PooledWork& work) noexcept {
  Lane& lane = *lanes_[static_cast<size_t>(number)];
  lane.transport->Open(work);
  try {
    RunCollective(lane, work.transfer());
    return {};
  } catch (const TransferError& error) {
    return error.status();
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kInternal, "Gloo: %s", error.what());
  }
}

int32_t GlooCommunicator::WaitingFor(int lane) const noexcept {
  return lanes_[static_cast<size_t>(lane)]->transport->waiting_for();
}

// In place is what Gloo does with an output and no input.
void GlooCommunicator::RunCollective(Lane& lane, const Transfer& transfer) const {
  const auto count = static_cast<size_t>(transfer.count);
  const size_t bytes = count * SizeOf(transfer.dtype);
  const auto ranks = static_cast<size_t>(ranks_.world_size);
  const bool in_place = transfer.send == transfer.recv;
  if (transfer.kind == TransferKind::kBarrier) {
    ::gloo::BarrierOptions options(lane.context);
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
  ::gloo::allreduce(options);
}

}  // namespace engine::gloo
