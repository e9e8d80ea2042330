#include "buckets.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "served_spec.h"

namespace engine::zmq_ps {
namespace {

Status Check(const ServedBucket& bucket, uint64_t slice_bytes) {
  const auto invalid = [&](const char* what) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "bucket %016" PRIx64 " of %" PRId64 " elements cannot be served: %s",
                         bucket.key, bucket.count, what);
  };
  if (bucket.key == 0) return invalid("it has no key");
  if (bucket.count <= 0 || bucket.count > static_cast<int64_t>(kMaxElements)) {
    return invalid("its size is out of range");
  }
  const char* const objection = ObjectionToSpans(bucket.spans, static_cast<uint64_t>(bucket.count));
  if (objection) return invalid(objection);
  if (bucket.row < 0 || (bucket.row > 0 && bucket.count % bucket.row != 0)) {
    return invalid("it is no whole number of rows");
  }
  if (static_cast<uint64_t>(bucket.row) * sizeof(float) > slice_bytes) {
    return invalid("one row is more than slice_bytes of zmq_ps");
  }
  if (bucket.spans.size() * sizeof(ServedSpan) > slice_bytes) {
    return invalid("its list of parameters is longer than slice_bytes of zmq_ps");
  }
  return {};
}

// Of host bytes: all ranks run the same build, and a span has no padding.
uint64_t DigestOf(const ServedBucket& bucket) noexcept {
  const uint64_t sizes[] = {bucket.key, static_cast<uint64_t>(bucket.count),
                            static_cast<uint64_t>(bucket.row)};
  uint64_t digest = XXH3_64bits(sizes, sizeof(sizes));
  for (const ServedSpan& span : bucket.spans) {
    digest = XXH3_64bits_withSeed(&span, sizeof(span), digest);
  }
  return digest;
}

}  // namespace

// A bucket with rows longer than a slice could not be cut between rows, and its spans travel in one
// message per slice: both are refused here, where a person can still choose other options.
Result<BucketTable> BucketTable::Create(Array<const ServedBucket> buckets, uint64_t slice_bytes) {
  BucketTable table;
  for (const ServedBucket& served : buckets) {
    ENGINE_RETURN_IF_ERROR(Check(served, slice_bytes));
    Bucket bucket{.key = served.key,
                  .count = served.count,
                  .row = served.row,
                  .spans = {served.spans.begin(), served.spans.end()}};
    table.digest_ += DigestOf(served);  // a sum, so that their order does not matter
    if (!table.buckets_.emplace(served.key, std::move(bucket)).second) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "two buckets have the key %016" PRIx64 ": each needs its own",
                           served.key);
    }
  }
  return table;
}

const Bucket* BucketTable::Find(uint64_t key) const noexcept {
  const auto found = buckets_.find(key);
  return found == buckets_.end() ? nullptr : &found->second;
}

std::vector<ServedSpan> SpansOf(const Bucket& bucket, uint64_t offset, uint64_t count) {
  std::vector<ServedSpan> spans;
  uint64_t begin = 0;
  for (const ServedSpan& span : bucket.spans) {
    const uint64_t end = begin + static_cast<uint64_t>(span.count);
    const uint64_t first = std::max(begin, offset), last = std::min(end, offset + count);
    if (first < last) {
      spans.push_back({static_cast<int64_t>(last - first), span.weight_decay_scale, 0});
    }
    begin = end;
  }
  return spans;
}

}  // namespace engine::zmq_ps
