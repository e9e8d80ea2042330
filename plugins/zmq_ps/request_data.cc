// Buffers of a transfer, as in engine/communicator.h: those of a reduce-scatter and an all-gather are
// of different sizes, world_size slices on one side and the own one on the other. Slice::offset
// counts in the larger one.
#include "request_data.h"

#include <algorithm>
#include <cstring>

namespace engine::zmq_ps {
namespace {

size_t RowBytes(const TransferWork& work) {
  return work.unit->granule() * sizeof(float);
}

}  // namespace

SliceSpec SpecOf(const TransferWork& work, const Slice& slice) {
  const Transfer& transfer = work.transfer();
  const bool is_empty =
      work.operation == Operation::kBarrier || work.operation == Operation::kLastStep;
  return {.operation = work.operation,
          .dtype = is_empty ? DType::kFloat32 : transfer.dtype,
          .reduction = is_empty ? Reduction::kSum : transfer.reduction,
          .root = work.operation == Operation::kBroadcast ? slice.owner : 0,
          .owner = slice.owner,
          .slices = static_cast<uint32_t>(work.slices.size()),
          .offset = slice.offset,
          .count = slice.count,
          .total = is_empty ? 0 : static_cast<uint64_t>(transfer.count),
          .tensor = transfer.key};
}

ServedFields ServedOf(const TransferWork& work, const Request& request) {
  ServedFields served = work.served;
  if (work.sparse()) served.rows = static_cast<int32_t>(request.row_count);
  return served;
}

size_t ByteOffset(const Transfer& transfer, const Slice& slice, bool buffer_is_own_part) {
  uint64_t first = slice.offset;
  if (buffer_is_own_part) first -= slice.owner * static_cast<uint64_t>(transfer.count);
  return static_cast<size_t>(first) * SizeOf(transfer.dtype);
}

void CopyOwnPart(const Transfer& transfer, uint32_t rank) {
  const size_t bytes = static_cast<size_t>(transfer.count) * SizeOf(transfer.dtype);
  if (bytes == 0 || !transfer.recv || !transfer.send) return;
  char* target = static_cast<char*>(transfer.recv);
  if (transfer.kind == TransferKind::kAllGather) {
    target += rank * bytes;
  } else if (transfer.kind != TransferKind::kBroadcast ||
             transfer.root != static_cast<int32_t>(rank)) {
    return;
  }
  if (target != transfer.send) std::memcpy(target, transfer.send, bytes);
}

// Rows ascend, and so do slices: each slice has a part of the list, found by bisection. It may be
// empty, and the request goes all the same, because the clock of the cell must advance.
void FindRows(const TransferWork& work, Request* request) {
  request->first_row = 0;
  request->row_count = 0;
  if (!work.sparse()) return;
  const int32_t* const rows = work.transfer().rows;
  const int32_t* const end = rows + work.transfer().row_count;
  const uint64_t row = work.unit->granule();
  const auto first = static_cast<int32_t>(request->slice.offset / row);
  const auto last = static_cast<int32_t>((request->slice.offset + request->slice.count) / row);
  const int32_t* const begin = std::lower_bound(rows, end, first);
  request->first_row = static_cast<uint32_t>(begin - rows);
  request->row_count = static_cast<uint32_t>(std::lower_bound(begin, end, last) - begin);
}

::zmq::message_t GatherRows(const TransferWork& work, const Request& request) {
  const size_t row_bytes = RowBytes(work);
  ::zmq::message_t message(request.row_count * row_bytes);
  const auto* const source = static_cast<const char*>(work.transfer().send);
  const int32_t* const rows = work.transfer().rows + request.first_row;
  for (uint32_t i = 0; i < request.row_count; ++i) {
    std::memcpy(static_cast<char*>(message.data()) + i * row_bytes,
                source + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
  }
  return message;
}

size_t AnswerBytes(const TransferWork& work, const Request& request, uint32_t worker) {
  const SliceSpec spec = SpecOf(work, request.slice);
  switch (work.operation) {
    case Operation::kPull:
      return work.sparse() ? request.row_count * RowBytes(work) : spec.bytes();
    case Operation::kLoad:
      return spec.bytes();
    default:
      return Receives(spec, worker) ? spec.bytes() : 0;
  }
}

// Where there are rows, all else in the caller's buffer stays as it is.
void TakeAnswer(const TransferWork& work, const Request& request, const void* data, size_t bytes) {
  if (bytes == 0) return;
  const Transfer& transfer = work.transfer();
  auto* const target = static_cast<char*>(transfer.recv);
  if (!work.sparse()) {
    const bool own_part = work.operation == Operation::kReduceScatter;
    std::memcpy(target + ByteOffset(transfer, request.slice, own_part), data, bytes);
    return;
  }
  const size_t row_bytes = RowBytes(work);
  const int32_t* const rows = transfer.rows + request.first_row;
  for (uint32_t i = 0; i < request.row_count; ++i) {
    std::memcpy(target + static_cast<size_t>(rows[i]) * row_bytes,
                static_cast<const char*>(data) + i * row_bytes, row_bytes);
  }
}

}  // namespace engine::zmq_ps
