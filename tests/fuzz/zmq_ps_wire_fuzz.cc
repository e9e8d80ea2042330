// Any bytes in place of a header of zmq_ps: refused, or a header within its bounds.
#include <cstddef>
#include <cstdint>

#include "wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace engine::zmq_ps;  // NOLINT(google-build-using-namespace): of this function only
  Header header;
  if (Decode(::zmq::message_t(data, size), &header)) return 0;
  ENGINE_CHECK(header.worker < header.world_size && header.world_size <= kMaxWorkers);
  if (header.kind != MessageKind::kPush && header.kind != MessageKind::kAnswer) return 0;
  const SliceSpec& spec = header.spec;
  ENGINE_CHECK(header.request > 0 && header.round > 0 && header.slice < spec.slices);
  ENGINE_CHECK(spec.total <= kMaxElements && spec.count <= spec.total);
  ENGINE_CHECK(spec.owner < header.world_size && spec.root < header.world_size);
  ENGINE_CHECK(spec.offset + spec.count <= spec.total * header.world_size);
  ENGINE_CHECK(!IsServed(spec.operation) || spec.dtype == engine::DType::kFloat32);
  return 0;
}
