#include "collectives.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

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

}  // namespace

Collectives::Collectives(tcp::Connections& connections, int lane, kit::Progress& progress,
                         std::string all_reduce)
    : ranks_(connections.ranks()),
      all_reduce_(std::move(all_reduce)),
      transport_(std::make_shared<gloo::Transport>(connections, lane, progress)),
      context_(std::make_shared<Context>(ranks_, transport_)) {}

Status Collectives::Run(kit::PooledWork& work) noexcept {
  transport_->Open(work);
  try {
    RunCollective(work.transfer());
    return {};
  } catch (const TransferError& error) {
    return error.status();
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kInternal, "Gloo: %s", error.what());
  }
}

// In place is what Gloo does with an output and no input.
void Collectives::RunCollective(const Transfer& transfer) {
  const auto count = static_cast<size_t>(transfer.count);
  const size_t bytes = count * SizeOf(transfer.dtype);
  const auto ranks = static_cast<size_t>(ranks_.world_size);
  const bool in_place = transfer.send == transfer.recv;
  if (transfer.kind == TransferKind::kBarrier) {
    ::gloo::BarrierOptions options(context_);
    return ::gloo::barrier(options);
  }
  if (count == 0) return;
  if (transfer.kind == TransferKind::kAllReduce) {
    return AllReduce(transfer, transfer.send, transfer.recv, transfer.count);
  }
  if (transfer.kind == TransferKind::kReduceScatter) {
    // Gloo has none that can be interrupted, nor one for any number of ranks.
    scratch_.resize(ranks * bytes);
    AllReduce(transfer, transfer.send, scratch_.data(), transfer.count * ranks_.world_size);
    const auto rank = static_cast<size_t>(ranks_.rank);
    std::memcpy(transfer.recv, scratch_.data() + rank * bytes, bytes);
    return;
  }
  if (transfer.kind == TransferKind::kAllGather) {
    const auto* const own =
        static_cast<const std::byte*>(transfer.recv) + static_cast<size_t>(ranks_.rank) * bytes;
    ::gloo::AllgatherOptions options(context_);
    SetBuffers(options, transfer.dtype, transfer.send == own ? nullptr : transfer.send, count,
               transfer.recv, count * ranks);
    return ::gloo::allgather(options);
  }
  ENGINE_CHECK(transfer.kind == TransferKind::kBroadcast);
  // The root may want no copy.
  const bool is_root = transfer.root == ranks_.rank;
  const bool copies = is_root && transfer.recv && !in_place;
  ::gloo::BroadcastOptions options(context_);
  SetBuffers(options, transfer.dtype, copies ? transfer.send : nullptr, count,
             is_root && !copies ? const_cast<void*>(transfer.send) : transfer.recv, count);
  options.setRoot(transfer.root);
  ::gloo::broadcast(options);
}

void Collectives::AllReduce(const Transfer& transfer, const void* send, void* recv,
                            int64_t count) const {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer.dtype, transfer.reduction);
  const auto elements = static_cast<size_t>(count);
  ::gloo::AllreduceOptions options(context_);
  SetBuffers(options, transfer.dtype, send == recv ? nullptr : send, elements, recv, elements);
  options.setReduceFunction(kernels.combine);
  options.setAlgorithm(Choose(all_reduce_, ranks_.world_size, elements * SizeOf(transfer.dtype)));
  ::gloo::allreduce(options);
}

}  // namespace engine::gloo
