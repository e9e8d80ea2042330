// Buffers of a transfer, as in engine/communicator.h: those of a reduce-scatter and an all-gather
// are of different sizes, world_size slices on one side and the own one on the other. Slice::offset
// counts in the larger one.
#include "request_data.h"

#include <algorithm>
#include <cstring>

namespace engine::zmq_ps {
namespace {

size_t RowBytes(const Request& request) {
  return request.work->bucket->granule() * sizeof(float);
}

// Rows ascend, and so do slices: each slice has a part of the list, found by bisection. It may be
// empty, and the request goes all the same, because the clock of the cell must advance.
void FindRows(Request* request) {
  const TransferWork& work = *request->work;
  const SliceSpec& spec = request->header.spec;
  const int32_t* const rows = work.rows.data();
  const int32_t* const end = rows + work.rows.size();
  const uint64_t row = work.bucket->granule();
  request->rows = std::lower_bound(rows, end, static_cast<int32_t>(spec.offset / row));
  const int32_t* const last =
      std::lower_bound(request->rows, end, static_cast<int32_t>((spec.offset + spec.count) / row));
  request->header.served.rows = static_cast<int32_t>(last - request->rows);
}

}  // namespace

Header SenderOf(const WorkerSettings& settings) {
  return {.worker = settings.worker,
          .world_size = settings.world_size,
          .incarnation = settings.incarnation};
}

Request RequestFor(TransferWork& work, const Slice& slice, Header header) {
  const Transfer& transfer = work.transfer();
  const bool is_empty =
      work.operation == Operation::kBarrier || work.operation == Operation::kLastStep;
  header.kind = MessageKind::kPush;
  header.sequence = transfer.sequence;
  header.priority = transfer.priority;
  header.served = work.served;
  header.spec = {.operation = work.operation,
                 .dtype = is_empty ? DType::kFloat32 : transfer.dtype,
                 .reduction = is_empty ? Reduction::kSum : transfer.reduction,
                 .root = work.operation == Operation::kBroadcast ? slice.owner : 0,
                 .owner = slice.owner,
                 .slices = static_cast<uint32_t>(work.requests.size()),
                 .offset = slice.offset,
                 .count = slice.count,
                 .total = is_empty ? 0 : static_cast<uint64_t>(transfer.count)};
  Request request{.work = &work, .header = header};
  if (work.sparse()) FindRows(&request);
  return request;
}

size_t ByteOffset(const Request& request, bool buffer_is_own_part) {
  const SliceSpec& spec = request.header.spec;
  const uint64_t first = spec.offset - (buffer_is_own_part ? spec.owner * spec.total : 0);
  return static_cast<size_t>(first) * SizeOf(spec.dtype);
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

::zmq::message_t GatherRows(const Request& request) {
  const size_t row_bytes = RowBytes(request);
  ::zmq::message_t message(request.row_count() * row_bytes);
  const auto* const source = static_cast<const char*>(request.work->transfer().send);
  for (size_t i = 0; i < request.row_count(); ++i) {
    std::memcpy(static_cast<char*>(message.data()) + i * row_bytes,
                source + static_cast<size_t>(request.rows[i]) * row_bytes, row_bytes);
  }
  return message;
}

size_t AnswerBytes(const Request& request) {
  const SliceSpec& spec = request.header.spec;
  switch (spec.operation) {
    case Operation::kPull:
      return request.work->sparse() ? request.row_count() * RowBytes(request) : spec.bytes();
    case Operation::kLoad:
      return spec.bytes();
    default:
      return Receives(spec, request.header.worker) ? spec.bytes() : 0;
  }
}

// Where there are rows, all else in the caller's buffer stays as it is.
void TakeAnswer(const Request& request, const void* data, size_t bytes) {
  if (bytes == 0) return;
  auto* const target = static_cast<char*>(request.work->transfer().recv);
  if (!request.work->sparse()) {
    const bool own_part = request.work->operation == Operation::kReduceScatter;
    std::memcpy(target + ByteOffset(request, own_part), data, bytes);
    return;
  }
  const size_t row_bytes = RowBytes(request);
  for (size_t i = 0; i < request.row_count(); ++i) {
    std::memcpy(target + static_cast<size_t>(request.rows[i]) * row_bytes,
                static_cast<const char*>(data) + i * row_bytes, row_bytes);
  }
}

}  // namespace engine::zmq_ps
