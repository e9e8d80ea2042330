// What bytes the requests of a transfer carry, and where they lie in the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <zmq.hpp>

#include "engine/communicator.h"
#include "wire.h"
#include "work.h"

namespace engine::zmq_ps {

SliceSpec SpecOf(const TransferWork& work, const Slice& slice);
ServedFields ServedOf(const TransferWork& work, const Request& request);

// Where the slice lies in the caller's buffers. Of a reduce-scatter `recv` is the own part only, of
// an all-gather `send` is.
size_t ByteOffset(const Transfer& transfer, const Slice& slice, bool buffer_is_own_part);

// What a rank has itself and no server needs to bring.
void CopyOwnPart(const Transfer& transfer, uint32_t rank);

// Which of Transfer::rows lie in the slice: fills first_row and row_count of the request.
void FindRows(const TransferWork& work, Request* request);

// The rows of the request, one behind the other: the only tensor bytes that are copied into a
// message, because they do not lie together.
::zmq::message_t GatherRows(const TransferWork& work, const Request& request);

// The size of the answer's tensor bytes.
size_t AnswerBytes(const TransferWork& work, const Request& request, uint32_t worker);
// Writes an answer of that size to `recv`.
void TakeAnswer(const TransferWork& work, const Request& request, const void* data, size_t bytes);

}  // namespace engine::zmq_ps
