// Any bytes in place of a header of zmq_ps: refused, or a header within its bounds that reads the
// same after it was written again.
#include <cmath>
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
  ENGINE_CHECK(header.incarnation <= kMaxIncarnation);
  const bool served = has_slice && IsServed(header.spec.operation);
  if (served) {
    const ServedFields& fields = header.served;
    ENGINE_CHECK(header.key != 0 || header.spec.operation == Operation::kLastStep);
    ENGINE_CHECK(header.spec.dtype == engine::DType::kFloat32 && fields.step <= kMaxStep);
    ENGINE_CHECK(std::isfinite(fields.learning_rate) && std::isfinite(fields.weight));
    ENGINE_CHECK(fields.weight >= 0 && fields.row <= header.spec.total);
    ENGINE_CHECK(fields.state >= -1 && fields.state < engine::kMaxOptimizerStates);
    ENGINE_CHECK(fields.rows <= header.spec.count && (fields.sparse || fields.rows == 0));
  }
  std::string bytes;
  Encode(header, &bytes);
  Header again;
  const char* const objection =
      Decode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, &again);
  ENGINE_CHECK(!objection, "%s", objection);
  ENGINE_CHECK(again.kind == header.kind && again.request == header.request);
  ENGINE_CHECK(again.incarnation == header.incarnation);
  ENGINE_CHECK(!served || again.served == header.served);
  ENGINE_CHECK(!has_slice || (again.spec == header.spec && again.key == header.key));
  return 0;
}
