#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "all_reduce_choice.h"
#include "kit/reduce.h"

namespace engine::tcp {
namespace {

// Steps that are sent before they are awaited.
constexpr int64_t kAhead = kWindowBytes / kPartBytes - 1;
static_assert(kAhead == 1);

void CopyIfApart(void* target, const void* source, size_t size_bytes) noexcept {
  if (target != source && size_bytes > 0) std::memcpy(target, source, size_bytes);
}

}  // namespace

Collectives::Collectives(Connections& connections, int lane, kit::Progress& progress)
    : channel_(connections, lane, progress),
      accumulator_(new std::byte[kPartBytes * kit::kAccumulatorGrowth]) {}

Status Collectives::Run(kit::PooledWork& work) noexcept {
  transfer_ = work.transfer();
  send_ = static_cast<const std::byte*>(transfer_.send);
  recv_ = static_cast<std::byte*>(transfer_.recv);
  part_count_ = static_cast<int64_t>(kPartBytes / SizeOf(transfer_.dtype));
  channel_.Open(work);
  switch (transfer_.kind) {
    case TransferKind::kAllReduce:
      return ChooseAllReduce(channel_.world_size(), Bytes(transfer_.count)) ==
                     AllReduceAlgorithm::kExchange
                 ? Exchange()
                 : ReduceScatterAllGather();
    case TransferKind::kReduceScatter:
      return ReduceScatter();
    case TransferKind::kAllGather:
      return AllGather();
    case TransferKind::kBroadcast:
      return Broadcast();
    case TransferKind::kBarrier:
      return Barrier();
    case TransferKind::kPush:
    case TransferKind::kPull:
      break;
  }
  ENGINE_CHECK(false, "transfer kind %d", static_cast<int>(transfer_.kind));
}

// Each rank begins with the one after it, so that not all write to rank 0 first.
template <typename Act>
Status Collectives::EachPeer(const Act& act) noexcept {
  for (int distance = 1; distance < channel_.world_size(); ++distance) {
    ENGINE_RETURN_IF_ERROR(act((channel_.rank() + distance) % channel_.world_size()));
  }
  return {};
}

template <typename Send, typename Receive>
Status Collectives::Pipeline(int64_t count, const Send& send, const Receive& receive) noexcept {
  const int64_t steps = StepCount(count);
  for (int64_t step = 0; step < steps + kAhead; ++step) {
    if (step < steps) ENGINE_RETURN_IF_ERROR(send(PartOf({0, count}, step)));
    if (step >= kAhead) ENGINE_RETURN_IF_ERROR(receive(PartOf({0, count}, step - kAhead)));
  }
  return {};
}

// All have all inputs and reduce them alike: nothing is sent back.
Status Collectives::Exchange() noexcept {
  return Pipeline(
      transfer_.count, [&](Range part) { return SendToAll(send_ + Bytes(part.begin), part.count); },
      [&](Range part) {
        return ReducePart(send_ + Bytes(part.begin), recv_ + Bytes(part.begin), part.count);
      });
}

// Two steps of channel.h in turn, none of them ahead: part k + 1 on its way while part k is gathered
// takes the cache and fills no link, because other ranks' parts do that already.
// In place nothing is overwritten too early: a step writes only parts that it has sent before.
Status Collectives::ReduceScatterAllGather() noexcept {
  const int ranks = channel_.world_size();
  const int64_t slice_count = (transfer_.count + ranks - 1) / ranks;
  const auto slice_of = [&](int rank) -> Range {
    const int64_t begin = std::min(rank * slice_count, transfer_.count);
    return {begin, std::min(slice_count, transfer_.count - begin)};
  };
  const Range own_slice = slice_of(channel_.rank());
  for (int64_t step = 0; step < StepCount(slice_count); ++step) {
    ENGINE_RETURN_IF_ERROR(EachPeer([&](int peer) {
      const Range part = PartOf(slice_of(peer), step);
      return channel_.Send(peer, send_ + Bytes(part.begin), Bytes(part.count));
    }));
    const Range own = PartOf(own_slice, step);
    ENGINE_RETURN_IF_ERROR(
        ReducePart(send_ + Bytes(own.begin), recv_ + Bytes(own.begin), own.count));
    ENGINE_RETURN_IF_ERROR(SendToAll(recv_ + Bytes(own.begin), own.count));
    ENGINE_RETURN_IF_ERROR(EachPeer([&](int peer) {
      const Range part = PartOf(slice_of(peer), step);
      return channel_.Receive(peer, recv_ + Bytes(part.begin), Bytes(part.count));
    }));
  }
  return {};
}

// In place recv is this rank's slice of send, which is sent to nobody: no step reads what an earlier
// one wrote.
Status Collectives::ReduceScatter() noexcept {
  const auto source = [&](int rank, Range part) {
    return send_ + Bytes(rank * transfer_.count + part.begin);
  };
  return Pipeline(
      transfer_.count,
      [&](Range part) {
        return EachPeer(
            [&](int peer) { return channel_.Send(peer, source(peer, part), Bytes(part.count)); });
      },
      [&](Range part) {
        return ReducePart(source(channel_.rank(), part), recv_ + Bytes(part.begin), part.count);
      });
}

// Parts are received where they belong.
Status Collectives::AllGather() noexcept {
  const auto target = [&](int rank, int64_t begin) {
    return recv_ + Bytes(rank * transfer_.count + begin);
  };
  CopyIfApart(target(channel_.rank(), 0), send_, Bytes(transfer_.count));
  return Pipeline(
      transfer_.count, [&](Range part) { return SendToAll(send_ + Bytes(part.begin), part.count); },
      [&](Range part) {
        return EachPeer([&](int peer) {
          return channel_.Receive(peer, target(peer, part.begin), Bytes(part.count));
        });
      });
}

// The root stands at the step that it sends: it awaits nothing.
Status Collectives::Broadcast() noexcept {
  const bool is_root = transfer_.root == channel_.rank();
  if (is_root && recv_) CopyIfApart(recv_, send_, Bytes(transfer_.count));
  for (int64_t step = 0; step < StepCount(transfer_.count); ++step) {
    const Range part = PartOf({0, transfer_.count}, step);
    if (is_root) {
      ENGINE_RETURN_IF_ERROR(SendToAll(send_ + Bytes(part.begin), part.count));
    } else {
      ENGINE_RETURN_IF_ERROR(
          channel_.Receive(transfer_.root, recv_ + Bytes(part.begin), Bytes(part.count)));
    }
  }
  return {};
}

// Headers alone.
Status Collectives::Barrier() noexcept {
  ENGINE_RETURN_IF_ERROR(SendToAll(nullptr, 0));
  return EachPeer([&](int peer) { return channel_.Receive(peer, nullptr, 0); });
}

// In rank order, so that the bits are the same on all ranks: of two ranks a sum needs no accumulator,
// of more the accumulator keeps 16-bit floats in float32 until all are added.
Status Collectives::ReducePart(const std::byte* own, std::byte* out, int64_t count) noexcept {
  const kit::ReduceKernels& kernels = kit::kReduceKernels.For(transfer_.dtype, transfer_.reduction);
  const size_t elements = static_cast<size_t>(count);
  if (channel_.world_size() == 2) {
    const bool own_first = channel_.rank() == 0;
    ENGINE_RETURN_IF_ERROR(channel_.Receive(own_first ? 1 : 0, channel_.inbox(), Bytes(count)));
    kernels.combine(out, own_first ? own : channel_.inbox(), own_first ? channel_.inbox() : own,
                    elements);
    return {};
  }
  for (int rank = 0; rank < channel_.world_size(); ++rank) {
    const bool is_own = rank == channel_.rank();
    if (!is_own) ENGINE_RETURN_IF_ERROR(channel_.Receive(rank, channel_.inbox(), Bytes(count)));
    const std::byte* const input = is_own ? own : channel_.inbox();
    (rank == 0 ? kernels.load : kernels.fold)(accumulator_.get(), input, elements);
  }
  kernels.store(out, accumulator_.get(), elements);
  return {};
}

Status Collectives::SendToAll(const std::byte* data, int64_t count) noexcept {
  return EachPeer([&](int peer) { return channel_.Send(peer, data, Bytes(count)); });
}

// At least one: the opening travels also when there are no elements.
int64_t Collectives::StepCount(int64_t count) const noexcept {
  return std::max<int64_t>(1, (count + part_count_ - 1) / part_count_);
}

Collectives::Range Collectives::PartOf(Range whole, int64_t step) const noexcept {
  const int64_t offset = std::min(step * part_count_, whole.count);
  return {whole.begin + offset, std::min(part_count_, whole.count - offset)};
}

size_t Collectives::Bytes(int64_t count) const noexcept {
  return static_cast<size_t>(count) * SizeOf(transfer_.dtype);
}

}  // namespace engine::tcp
