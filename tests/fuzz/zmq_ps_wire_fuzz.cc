// Any bytes in place of a header of zmq_ps: refused, or a header within its bounds that reads the
// same after it was written again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace engine::zmq_ps;  // NOLINT(google-build-using-namespace): of this function only
  Header header;
  if (Decode({data, size}, &header)) return 0;
  ENGINE_CHECK(header.worker < header.world_size && header.world_size <= kMaxWorkers);
  ENGINE_CHECK(header.requests.size() <= kMaxRequestsPerHeader);
  const bool has_slice = header.kind == MessageKind::kPush || header.kind == MessageKind::kAnswer;
  if (has_slice) {
    const SliceSpec& spec = header.spec;
    ENGINE_CHECK(header.request > 0 && header.round > 0 && header.slice < spec.slices);
    ENGINE_CHECK(spec.total <= kMaxElements && spec.count <= spec.total);
    ENGINE_CHECK(spec.owner < header.world_size && spec.root < header.world_size);
    ENGINE_CHECK(spec.offset + spec.count <= spec.total * header.world_size);
  }
  std::string bytes;
  Encode(header, &bytes);
  Header again;
  const char* const objection =
      Decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, &again);
  ENGINE_CHECK(!objection, "%s", objection);
  ENGINE_CHECK(again.kind == header.kind && again.request == header.request);
  ENGINE_CHECK(!has_slice || (again.spec == header.spec && again.key == header.key));
  return 0;
}
