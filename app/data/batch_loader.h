// Batches of one rank, made ready ahead of the step by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/call_watch.h"
#include "core/train/batch_source.h"
#include "engine/dataset.h"

namespace engine::data {

struct LoaderOptions {
  uint64_t seed = 1;
  bool shuffle = true;
  int32_t prefetch = 2;              // batches made ahead of the one in use; 0 .. 1024
  std::string plugin = "a dataset";  // for messages: "plugin 'x'"
  int64_t timeout_ms = 60000;        // for a batch to be made, once it is asked for
  base::CallWatch* watch =
      nullptr;  // or null, and the call that is open while a batch is waited for
  const base::CallWatch::Call* fill = nullptr;
};

// Step s of an epoch covers positions [s * global_batch, min((s + 1) * global_batch, size)) of the
// epoch's order, split over the ranks in contiguous shares that differ by at most one sample,
// larger ones first. The order is a permutation that depends on seed, epoch and position only, so N
// ranks together see in each step what one rank sees.
//
// Next allocates nothing after its first call. When the dataset fails, the batches made before are
// still returned, and then its error by every call. `dataset`, opened, is borrowed and must outlive
// the stream. kInvalidArgument when it is empty or a value is out of range; kResourceExhausted when
// the batches do not fit into memory.
Result<std::unique_ptr<train::BatchStream>> LoadBatches(const Dataset& dataset,
                                                        const train::BatchRequest& request,
                                                        const LoaderOptions& options);

}  // namespace engine::data
