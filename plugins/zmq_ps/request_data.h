// What bytes the requests of a transfer carry, and where they lie in the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <zmq.hpp>

#include "channel.h"
#include "engine/communicator.h"
#include "partition.h"
#include "wire.h"
#include "work.h"

namespace engine::zmq_ps {

// The fields of all messages of a rank.
Header SenderOf(const WorkerSettings& settings);
// The request for a slice of `work`, one of work.requests, but for its number and deadline. `header`
// says who sends it, which slice it is and what it is matched by.
Request RequestFor(TransferWork& work, const Slice& slice, Header header);

// Where the slice lies in the caller's buffers. Of a reduce-scatter `recv` is the own part only, of
// an all-gather `send` is.
size_t ByteOffset(const Request& request, bool buffer_is_own_part);

// What a rank has itself and no server needs to bring.
void CopyOwnPart(const Transfer& transfer, uint32_t rank);

// The rows of the request, one behind the other: the only tensor bytes that are copied into a
// message, because they do not lie together.
::zmq::message_t GatherRows(const Request& request);

// The size of the answer's tensor bytes.
size_t AnswerBytes(const Request& request);
// Writes an answer of that size to `recv`.
void TakeAnswer(const Request& request, const void* data, size_t bytes);

}  // namespace engine::zmq_ps
