// The buckets that a rank registered with its servers.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "engine/status.h"
#include "wire.h"

namespace engine::zmq_ps {

struct Bucket {
  uint64_t key = 0;
  int64_t count = 0;  // float32 elements
  int64_t row = 0;    // elements; 0: it has no rows
  std::vector<ServedSpan> spans;

  uint64_t granule() const noexcept { return row > 0 ? static_cast<uint64_t>(row) : 1; }
};

// Constant.
class BucketTable {
 public:
  BucketTable() = default;
  // kInvalidArgument: a key that is 0 or there twice, spans that are not the bucket, a row that does
  // not divide it or is longer than a slice.
  static Result<BucketTable> Create(Array<const ServedBucket> buckets, uint64_t slice_bytes);

  // Null when there is none.
  const Bucket* Find(uint64_t key) const noexcept;
  // The same for equal buckets, whatever their order; of others another one, in all likelihood.
  uint64_t digest() const noexcept { return digest_; }
  const std::unordered_map<uint64_t, Bucket>& all() const noexcept { return buckets_; }

 private:
  std::unordered_map<uint64_t, Bucket> buckets_;  // by key
  uint64_t digest_ = 0;
};

// The parts of the spans that lie in [offset, offset + count).
std::vector<ServedSpan> SpansOf(const Bucket& bucket, uint64_t offset, uint64_t count);

}  // namespace engine::zmq_ps
