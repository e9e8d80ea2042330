// Order. One thread starts the transfers of both levels, and which stages of a chunk are on a level
// follows from the transfer and is the same for all ranks of that level: they see one order. A rank
// that waits for a stage waits for one that is at an earlier place of the same list, so nobody waits in
// a circle.
//
// Deadlines. Inner transfers have several times the time of the whole: a rank may stand still on one
// level because another moves on the other, which kit::Lanes alone sees, through the store. It ends
// what is late, and the failure aborts both levels. On a device the levels see to it: the clock of a stage
// begins when those before it have ended here. A rank waits the longer the later the stage, so that
// who waits for the one that stands still is the first to say so.
#include "pipeline.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "kit/deadline.h"
#include "kit/describe.h"
#include "kit/inner_communicator.h"

namespace engine::hier {
namespace {

// Between the deadlines of stages that a device waits for.
constexpr int64_t kStageMs = 2000;

// Of a transfer inside, which is a chunk at most.
int64_t InnerTimeoutMs(const Transfer& transfer) noexcept {
  return 10 * kit::Timeout(transfer.timeout_ms).count();
}

}  // namespace

Result<Level> Level::Make(Host& host, std::string_view plugin, std::string_view label,
                          const std::vector<int32_t>& ranks, int32_t own) {
  Level level;
  ENGINE_ASSIGN_OR_RETURN(level.communicator, kit::MakeInner(host, plugin, label, ranks));
  level.wire = Query<WireProgress>(*level.communicator);
  const auto after = std::upper_bound(ranks.begin(), ranks.end(), own);
  level.next = after == ranks.end() ? ranks.front() : *after;
  return level;
}

Result<std::unique_ptr<Pipeline>> Pipeline::Create(Hosts hosts, const Levels& levels,
                                                   size_t part_bytes, Device* device,
                                                   kit::Failure& failure, kit::Progress& progress) {
  std::unique_ptr<Pipeline> made(
      new Pipeline(std::move(hosts), levels, part_bytes, device, failure, progress));
  for (Slot& slot : made->slots_) ENGINE_RETURN_IF_ERROR(made->MakeSlot(slot));
  return made;
}

Pipeline::Pipeline(Hosts hosts, const Levels& levels, size_t part_bytes, Device* device,
                   kit::Failure& failure, kit::Progress& progress)
    : hosts_(std::move(hosts)),
      levels_(levels),
      only_(hosts_.count() == 1    ? &levels[0]
            : hosts_.widest() == 1 ? &levels[1]
                                   : nullptr),
      is_between_(hosts_.even || hosts_.own.local == 0),
      part_bytes_(std::max(part_bytes, hosts_.count() * sizeof(float))),
      device_(device),
      failure_(failure),
      progress_(progress) {}

// On the host, slots that no transfer uses get no pages.
Status Pipeline::MakeSlot(Slot& slot) {
  const size_t size = hosts_.widest() * part_bytes_;
  if (!device_) {
    slot.bytes = std::make_shared_for_overwrite<std::byte[]>(size);
    return {};
  }
  Stream* stream = nullptr;
  Event* mark = nullptr;
  void* bytes = nullptr;
  ENGINE_RETURN_IF_ERROR(device_->CreateStream(&stream));
  slot.stream.reset(stream);
  ENGINE_RETURN_IF_ERROR(device_->CreateEvent(&mark));
  slot.mark.reset(mark);
  if (only_) return {};
  ENGINE_RETURN_IF_ERROR(device_->Allocate(size, &bytes));
  slot.bytes.reset(static_cast<std::byte*>(bytes),
                   [device = device_](std::byte* memory) { device->Free(memory); });
  return {};
}

void Pipeline::Take(kit::PooledWork& work) noexcept {
  work_ = &work;
  transfer_ = work.transfer();
  count_ = static_cast<size_t>(transfer_.count);
  send_ = static_cast<const std::byte*>(transfer_.send);
  recv_ = static_cast<std::byte*>(transfer_.recv);
}

Status Pipeline::Run(kit::PooledWork& work) noexcept {
  Take(work);
  Status status = RunChunks();
  if (status.ok()) return status;
  status = failure_.Fail(status.WithContext("%s", kit::Describe(transfer_).c_str()));
  // Both levels have failed now. Buffers are in use until what was started has ended.
  for (Slot& slot : slots_) {
    if (slot.work == nullptr) continue;
    (void)slot.work->WaitHost(kit::kWorkGraceMs);
    std::exchange(slot.work, nullptr)->Release();
  }
  return status;
}

// What was queued before an error may still move, so the work tells of it when that has ended.
Status Pipeline::Queue(QueuedWork& work) noexcept {
  Take(work);
  queued_ = &work;
  ENGINE_RETURN_IF_ERROR(work.Begin(Chunks() * kStages + 1));
  const Status status = QueueChunks();
  for (Slot& slot : slots_) slot.work = nullptr;
  work.EndQueueing(status);
  return {};
}

// A transfer of nothing behind all copies tells of the end of all.
Status Pipeline::QueueChunks() noexcept {
  const std::span<Slot> used(slots_.data(), std::min(Chunks(), kSlots));
  Slot& last = used.front();
  if (transfer_.stream) ENGINE_RETURN_IF_ERROR(transfer_.stream->Record(last.mark.get()));
  for (Slot& slot : used) {
    if (transfer_.stream) ENGINE_RETURN_IF_ERROR(slot.stream->Wait(last.mark.get()));
  }
  ENGINE_RETURN_IF_ERROR(RunChunks());
  for (Slot& slot : used.subspan(1)) {
    ENGINE_RETURN_IF_ERROR(slot.stream->Record(slot.mark.get()));
    ENGINE_RETURN_IF_ERROR(last.stream->Wait(slot.mark.get()));
  }
  Transfer end = transfer_;
  end.kind = TransferKind::kAllReduce;
  end.count = 0;
  last.stages[0] = {levels_.data(), end};
  return Start(last, 0, Chunks());
}

Status Pipeline::RunChunks() noexcept {
  const size_t size = ChunkCount(), chunks = Chunks();
  for (size_t step = 0; step < chunks + kStages; ++step) {
    for (size_t stage = step < chunks ? 0 : step - chunks + 1; stage <= std::min(step, kStages);
         ++stage) {
      const size_t chunk = step - stage;
      Slot& slot = slots_[chunk % kSlots];
      if (stage == 0) {
        slot.begin = chunk * size;
        slot.count = std::min(size, count_ - slot.begin);
        slot.copied = {};
        Prepare(slot);
        ENGINE_RETURN_IF_ERROR(slot.copied);
      }
      ENGINE_RETURN_IF_ERROR(Await(slot));
      ENGINE_RETURN_IF_ERROR(stage < kStages ? Start(slot, stage, chunk) : Finish(slot));
    }
  }
  return {};
}

// Keys inside differ where those of the transfer do: ranks that are in different ones hear of it.
Status Pipeline::Start(Slot& slot, size_t stage, size_t chunk) noexcept {
  slot.level = slot.stages[stage].level;
  if (slot.level == nullptr) return {};
  Transfer& transfer = slot.stages[stage].transfer;
  if (transfer.key != 0) transfer.key = transfer.key * 0x9e3779b97f4a7c15 + chunk * kStages + stage;
  transfer.stream = slot.stream.get();
  transfer.timeout_ms = device_ ? kit::Timeout(transfer_.timeout_ms).count() + kStageMs * stage
                                : InnerTimeoutMs(transfer_);
  ENGINE_RETURN_IF_ERROR(slot.level->communicator->Submit(transfer, &slot.work));
  if (queued_) {
    queued_->Add(slot.work);
  } else {
    work_->MarkStarted();
  }
  return {};
}

// A wait that is longer than the transfer may take lets this thread carry it out.
Status Pipeline::Await(Slot& slot) noexcept {
  if (slot.work == nullptr) return {};
  if (queued_) return std::exchange(slot.work, nullptr)->WaitStream(slot.stream.get());
  waits_in_.store(slot.level, std::memory_order_relaxed);
  ENGINE_RETURN_IF_ERROR(slot.work->WaitHost(InnerTimeoutMs(transfer_) + kit::kWorkGraceMs));
  std::exchange(slot.work, nullptr)->Release();
  progress_.Moved(1);
  return {};
}

// The thread that looks for late transfers asks, once a tick: a chunk that moves slowly is not late.
int32_t Pipeline::WaitingFor() const noexcept {
  uint64_t moved = 0;
  for (const Level& level : levels_) moved += level.wire ? level.wire->bytes_moved() : 0;
  if (moved_.exchange(moved, std::memory_order_relaxed) != moved) progress_.Moved(1);
  const Level* const level = waits_in_.load(std::memory_order_relaxed);
  return level ? level->next : -1;
}

// ---- What the stages of a chunk are. Pointers are those of the running transfer, or of the slot.

size_t Pipeline::ChunkCount() const noexcept {
  if (only_) return std::max<size_t>(count_, 1);
  const size_t part = part_bytes_ / SizeOf(transfer_.dtype);
  const bool is_of_all =
      transfer_.kind == TransferKind::kReduceScatter || transfer_.kind == TransferKind::kAllGather;
  if (is_of_all) return part / hosts_.count();
  return transfer_.kind == TransferKind::kAllReduce && hosts_.even ? part * hosts_.widest() : part;
}

void Pipeline::Prepare(Slot& slot) noexcept {
  slot.stages = {};
  slot.result = nullptr;
  if (only_) {
    slot.stages[0] = {only_, transfer_};
    return;
  }
  switch (transfer_.kind) {
    case TransferKind::kAllReduce:
      return PrepareAllReduce(slot);
    case TransferKind::kReduceScatter:
      return PrepareReduceScatter(slot);
    case TransferKind::kAllGather:
      return PrepareAllGather(slot);
    case TransferKind::kBroadcast:
      return PrepareBroadcast(slot);
    default:
      for (size_t stage = 0; stage < kStages; ++stage) {
        Set(slot, stage, TransferKind::kBarrier, nullptr, nullptr, 0);
      }
  }
}

// In place in `recv`, but for a count that the ranks of a host cannot share evenly.
void Pipeline::PrepareAllReduce(Slot& slot) noexcept {
  const std::byte* in = send_ + Bytes(slot.begin);
  std::byte* out = recv_ + Bytes(slot.begin);
  if (!hosts_.even) return SumOverLeaders(slot, in, out, slot.count);
  const size_t ranks = hosts_.widest(), part = (slot.count + ranks - 1) / ranks;
  if (part * ranks != slot.count) {
    out = slot.bytes.get();
    Copy(slot, out, in, Bytes(slot.count));
    Zero(slot, out + Bytes(slot.count), Bytes(part * ranks - slot.count));
    slot.result = in = out;
  }
  std::byte* const own = out + Bytes(part * hosts_.own.local);
  Set(slot, 0, TransferKind::kReduceScatter, in, own, part);
  Set(slot, 1, TransferKind::kAllReduce, own, own, part);
  Set(slot, 2, TransferKind::kAllGather, own, out, part);
}

// Even: what the ranks of a column want lies together, as that rank's slice inside.
void Pipeline::PrepareReduceScatter(Slot& slot) noexcept {
  std::byte* const all = slot.bytes.get();
  const size_t part = Bytes(slot.count), host_count = hosts_.count() * slot.count;
  for (size_t rank = 0; rank < hosts_.places.size(); ++rank) {
    Copy(slot, all + (hosts_.even ? PlaceOf(rank) : rank) * part,
         send_ + Bytes(rank * count_ + slot.begin), part);
  }
  if (!hosts_.even) {
    slot.result = all;
    return SumOverLeaders(slot, all, all, hosts_.places.size() * slot.count);
  }
  std::byte* const own = all + Bytes(hosts_.own.local * host_count);
  Set(slot, 0, TransferKind::kReduceScatter, all, own, host_count);
  Set(slot, 1, TransferKind::kReduceScatter, own, recv_ + Bytes(slot.begin), slot.count);
}

// Leaders move as much for a host with fewer ranks, of which nothing is taken.
void Pipeline::PrepareAllGather(Slot& slot) noexcept {
  std::byte* const all = slot.bytes.get();
  const std::byte* const in = send_ + Bytes(slot.begin);
  const size_t group = hosts_.even ? hosts_.count() : hosts_.widest(), count = group * slot.count;
  std::byte* const own = all + Bytes((hosts_.even ? hosts_.own.local : hosts_.own.host) * count);
  slot.result = all;
  Set(slot, hosts_.even ? 1 : 0, TransferKind::kAllGather, in, own, slot.count);
  Set(slot, hosts_.even ? 2 : 1, TransferKind::kAllGather, own, all, count);
  if (!hosts_.even) Set(slot, 2, TransferKind::kBroadcast, all, all, hosts_.count() * count);
}

// Between hosts it goes from the root, or from the leader of its host, to which it goes first.
void Pipeline::PrepareBroadcast(Slot& slot) noexcept {
  const Hosts::Place& root = hosts_.places[static_cast<size_t>(transfer_.root)];
  const size_t sender = hosts_.even ? root.local : 0;
  const bool is_root = root.host == hosts_.own.host && root.local == hosts_.own.local;
  std::byte* const whole = is_root ? const_cast<std::byte*>(send_) : recv_;
  std::byte* const data = whole + Bytes(slot.begin);
  if (is_root && recv_ && recv_ != send_) slot.result = data;
  const bool begins_here = root.host == hosts_.own.host && root.local != sender;
  constexpr auto kKind = TransferKind::kBroadcast;
  if (begins_here) Set(slot, 0, kKind, data, data, slot.count, root.local);
  // Where hosts are not even, leaders are in the order of their hosts.
  const size_t from = hosts_.even ? root.peer : root.host;
  if (hosts_.own.local == sender) Set(slot, 1, kKind, data, data, slot.count, from);
  if (!begins_here) Set(slot, 2, kKind, data, data, slot.count, sender);
}

void Pipeline::SumOverLeaders(Slot& slot, const std::byte* in, std::byte* out,
                              size_t count) noexcept {
  Set(slot, 0, TransferKind::kAllReduce, in, out, count);
  Set(slot, 1, TransferKind::kAllReduce, out, out, count);
  Set(slot, 2, TransferKind::kBroadcast, out, out, count);
}

// Stage 1 is between hosts, of a rank that takes part in that; the others are inside.
void Pipeline::Set(Slot& slot, size_t stage, TransferKind kind, const void* send, void* recv,
                   size_t count, size_t root) const noexcept {
  if (stage == 1 && !is_between_) return;
  Transfer transfer = transfer_;
  transfer.kind = kind;
  transfer.send = send;
  transfer.recv = recv;
  transfer.count = static_cast<int64_t>(count);
  transfer.root = static_cast<int32_t>(root);
  slot.stages[stage] = {&levels_[stage % 2], transfer};
}

Status Pipeline::Finish(Slot& slot) const noexcept {
  if (slot.result == nullptr) return {};
  const size_t part = Bytes(slot.count);
  std::byte* const out = recv_ + Bytes(slot.begin);
  if (transfer_.kind == TransferKind::kReduceScatter) {
    const auto own = static_cast<size_t>(hosts_.local_ranks()[hosts_.own.local]);
    Copy(slot, out, slot.result + own * part, part);
  } else if (transfer_.kind == TransferKind::kAllGather) {
    for (size_t rank = 0; rank < hosts_.places.size(); ++rank) {
      Copy(slot, out + Bytes(rank * count_), slot.result + PlaceOf(rank) * part, part);
    }
  } else {
    Copy(slot, out, slot.result, part);
  }
  return slot.copied;
}

void Pipeline::Copy(Slot& slot, std::byte* to, const std::byte* from, size_t bytes) const noexcept {
  if (bytes == 0 || !slot.copied.ok()) return;
  if (device_) {
    slot.copied = device_->Copy(to, from, bytes, slot.stream.get());
  } else {
    std::memcpy(to, from, bytes);
  }
}

void Pipeline::Zero(Slot& slot, std::byte* to, size_t bytes) const noexcept {
  if (!slot.copied.ok()) return;
  if (device_) {
    slot.copied = device_->Zero(to, bytes, slot.stream.get());
  } else {
    std::memset(to, 0, bytes);
  }
}

}  // namespace engine::hier
