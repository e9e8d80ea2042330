#include "replica_sums.h"

#include <new>

#include "batch_norm_memory.h"

namespace engine::cpu_ops {
namespace {

void Zero(const ChannelSums& sums, int64_t channels) noexcept {
  for (int64_t c = 0; c < channels; ++c) sums.first[c] = sums.second[c] = 0.0;
}

}  // namespace

Status ReplicaSums::Reserve(const Replicas& replicas, int64_t row_size) noexcept {
  const int64_t size = replicas.size() * row_size;
  row_size_ = row_size;
  if (size <= capacity_) return {};
  rows_.reset(new (std::nothrow) float[static_cast<size_t>(size)]);
  capacity_ = rows_ != nullptr ? size : 0;
  if (rows_ != nullptr) return {};
  return Status::Error(StatusCode::kResourceExhausted,
                       "no memory for %lld floats of each of %d ranks",
                       static_cast<long long>(row_size), static_cast<int>(replicas.size()));
}

// A row: {count (high), count (low), float[C] mean (high), mean (low), sum of squares}.
Status ReplicaSums::Merge(const OpCall& call, int64_t channels, const ChannelSums& moments,
                          double* count) noexcept {
  Replicas& replicas = *call.replicas;
  ENGINE_RETURN_IF_ERROR(Reserve(replicas, 2 + 3 * channels));
  float* own = Row(replicas.rank());
  const FloatPair own_count(*count);
  own[0] = own_count.high;
  own[1] = own_count.low;
  for (int64_t c = 0; c < channels; ++c) {
    const FloatPair mean(moments.first[c]);
    own[2 + c] = mean.high;
    own[2 + channels + c] = mean.low;
    own[2 + 2 * channels + c] = static_cast<float>(moments.second[c]);
  }
  ENGINE_RETURN_IF_ERROR(replicas.Gather(own, row_size_, rows_.get(), call.stream));
  // From what was sent, also of this rank: every rank adds up the same floats.
  *count = 0.0;
  Zero(moments, channels);
  for (int32_t rank = 0; rank < replicas.size(); ++rank) {
    const float* row = Row(rank);
    const double rank_count = FloatPair(row[0], row[1]).value();
    for (int64_t c = 0; c < channels; ++c) {
      MergeMoments(&moments.first[c], &moments.second[c], *count,
                   FloatPair(row[2 + c], row[2 + channels + c]).value(),
                   static_cast<double>(row[2 + 2 * channels + c]), rank_count);
    }
    *count += rank_count;
  }
  return {};
}

// A row: {float[C] first, second}.
Status ReplicaSums::Add(const OpCall& call, int64_t channels, const ChannelSums& sums) noexcept {
  Replicas& replicas = *call.replicas;
  ENGINE_RETURN_IF_ERROR(Reserve(replicas, 2 * channels));
  float* own = Row(replicas.rank());
  for (int64_t c = 0; c < channels; ++c) {
    own[c] = static_cast<float>(sums.first[c]);
    own[channels + c] = static_cast<float>(sums.second[c]);
  }
  ENGINE_RETURN_IF_ERROR(replicas.Gather(own, row_size_, rows_.get(), call.stream));
  Zero(sums, channels);
  for (int32_t rank = 0; rank < replicas.size(); ++rank) {
    const float* row = Row(rank);
    for (int64_t c = 0; c < channels; ++c) {
      sums.first[c] += static_cast<double>(row[c]);
      sums.second[c] += static_cast<double>(row[channels + c]);
    }
  }
  return {};
}

}  // namespace engine::cpu_ops
