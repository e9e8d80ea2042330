#include "app/data/batch_loader.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "app/data/permutation.h"
#include "core/plugin/plugin_set.h"

namespace engine::data {
namespace {

using train::Batch;
using train::BatchRequest;

constexpr int32_t kMaxPrefetch = 1024;
// Between two looks at whether the loader is to end.
constexpr int64_t kSamplesAtOnce = 64;

// Memory for (count, shape), aligned for any vector instruction.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { ::operator delete(data_, kAlignment); }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), end_(other.end_) {}
  Buffer& operator=(Buffer&&) = delete;

  Status Allocate(int64_t count, const Shape& shape, DType dtype) {
    int64_t size_bytes = static_cast<int64_t>(SizeOf(dtype));
    if (!__builtin_mul_overflow(size_bytes, shape.Count(), &size_bytes) &&
        !__builtin_mul_overflow(size_bytes, count, &size_bytes)) {
      data_ = ::operator new(static_cast<size_t>(size_bytes) + sizeof(kGuard), kAlignment,
                             std::nothrow);
    }
    end_ = static_cast<std::byte*>(data_) + size_bytes;
    if (data_) return std::memcpy(end_, &kGuard, sizeof(kGuard)), Status();
    return Status::Error(StatusCode::kResourceExhausted,
                         "no memory for a batch of %" PRId64 " samples; lower the batch size",
                         count);
  }

  void* data() const { return data_; }
  // Whether somebody has written behind the end.
  bool IsOverrun() const { return std::memcmp(end_, &kGuard, sizeof(kGuard)) != 0; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr uint64_t kGuard = 0xa5a5a5a5a5a5a5a5;
  void* data_ = nullptr;
  void* end_ = nullptr;
};

// The samples of one batch: a buffer per tensor, inputs first and then targets.
struct Slot {
  std::vector<Buffer> tensors;
  std::vector<const void*> others;  // all but the first input and the first target
  Batch batch;
};

int64_t SampleBytes(const SampleTensor& tensor) {
  return tensor.shape.Count() * static_cast<int64_t>(SizeOf(tensor.dtype));
}

int64_t SamplesOf(const DatasetInfo& info, Split split) {
  return split == Split::kTrain ? info.train_samples : info.held_out_samples;
}

// A ring of slots. Batch n lies in slot n % slots; numbers only grow:
//
//   released <= taken <= released + 1      the consumer holds at most one batch
//   taken <= produced <= released + slots  the producer never writes to a slot that is held
//
// So a slot is filled without the lock: its number is between produced and released + slots, where
// the consumer does not look. Whoever passes a slot on does so by a number changed under the lock,
// which publishes what was written to the slot before.
class PrefetchingLoader final : public train::BatchStream {
 public:
  PrefetchingLoader(const Dataset& dataset, const BatchRequest& request,
                    const LoaderOptions& options)
      : dataset_(dataset),
        request_(request),
        options_(options),
        name_(dataset.info().name),
        inputs_(dataset.info().inputs.size()),
        size_(SamplesOf(dataset.info(), request.split)),
        steps_per_epoch_(train::CeilDiv(size_, request.global_batch)),
        slots_(static_cast<size_t>(options.prefetch) + 1) {
    for (const auto& tensors : {dataset.info().inputs, dataset.info().targets}) {
      tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
    }
    rows_.resize(tensors_.size());
  }

  Status Start() {
    BatchRequest largest = request_;
    largest.global_batch = std::min(request_.global_batch, size_);
    for (Slot& slot : slots_) {
      slot.tensors.resize(tensors_.size());
      for (size_t t = 0; t < tensors_.size(); ++t) {
        ENGINE_RETURN_IF_ERROR(
            slot.tensors[t].Allocate(largest.MaxSamples(), tensors_[t].shape, tensors_[t].dtype));
        if (t != 0 && t != inputs_) slot.others.push_back(slot.tensors[t].data());
      }
      slot.batch.input = slot.tensors[0].data();
      if (inputs_ < tensors_.size()) slot.batch.target = slot.tensors[inputs_].data();
      slot.batch.others = slot.others;
    }
    producer_ = std::jthread([this](std::stop_token stop) { Produce(stop); });
    return {};
  }

  // One that does not return is joined for ever, which the watch ends.
  ~PrefetchingLoader() override {
    const base::OpenCall open(options_.watch, base::CallWatch::kCompute, options_.fill);
    producer_ = {};
  }

  Result<const Batch*> Next() override {
    const base::OpenCall open(options_.watch, base::CallWatch::kCompute, options_.fill);
    std::unique_lock lock(mutex_);
    released_ = taken_;
    slot_free_.notify_one();
    const bool in_time =
        batch_ready_.wait_for(lock, std::chrono::milliseconds(options_.timeout_ms),
                              [this] { return produced_ > taken_ || !error_.ok(); });
    if (produced_ > taken_) return &slots_[taken_++ % slots_.size()].batch;
    if (in_time) return error_;
    return Status::Error(StatusCode::kTimeout,
                         "%s: no batch was ready within %" PRId64
                         " ms: Fill of its plugin is slow or does not return",
                         name_.c_str(), options_.timeout_ms);
  }

  int64_t steps_per_epoch() const override { return steps_per_epoch_; }

 private:
  void Produce(const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "engine-data");
    for (uint64_t number = 0; WaitForSlot(stop); ++number) {
      const uint64_t step = static_cast<uint64_t>(request_.first_step) + number;
      Status status = Fill(step, &slots_[number % slots_.size()], stop);
      const std::lock_guard lock(mutex_);
      if (status.ok()) {
        ++produced_;
      } else {
        error_ = std::move(status);
      }
      batch_ready_.notify_one();
      if (!error_.ok()) return;
    }
  }

  // False when the loader is to end.
  bool WaitForSlot(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    return slot_free_.wait(lock, stop, [this] { return produced_ < released_ + slots_.size(); });
  }

  Status Fill(uint64_t step, Slot* slot, const std::stop_token& stop) noexcept {
    const uint64_t steps = static_cast<uint64_t>(steps_per_epoch_);
    Batch& batch = slot->batch;
    batch.epoch = step / steps;
    batch.step_in_epoch = static_cast<int64_t>(step % steps);
    const int64_t first = batch.step_in_epoch * request_.global_batch;
    batch.global_samples = std::min(request_.global_batch, size_ - first);
    const int64_t share = batch.global_samples / request_.world_size;
    const int64_t larger_shares = batch.global_samples % request_.world_size;
    batch.samples = share + (request_.rank < larger_shares ? 1 : 0);
    batch.first_sample = request_.rank * share + std::min<int64_t>(request_.rank, larger_shares);
    const int64_t begin = first + batch.first_sample;

    const Permutation order(size_, options_.seed, batch.epoch);
    std::array<int64_t, kSamplesAtOnce> indices;
    for (int64_t done = 0; done < batch.samples && !stop.stop_requested();) {
      const int64_t count = std::min(batch.samples - done, kSamplesAtOnce);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t position = begin + done + i;
        indices[static_cast<size_t>(i)] = options_.shuffle ? order(position) : position;
      }
      for (size_t t = 0; t < tensors_.size(); ++t) {
        rows_[t] =
            static_cast<std::byte*>(slot->tensors[t].data()) + done * SampleBytes(tensors_[t]);
      }
      const Status filled =
          dataset_.Fill({.split = request_.split,
                         .epoch = batch.epoch,
                         .indices = std::span(indices).first(static_cast<size_t>(count)),
                         .tensors = rows_});
      ENGINE_RETURN_IF_ERROR(plugin::Answer(filled).WithContext("%s", options_.plugin.c_str()));
      for (size_t t = 0; t < tensors_.size(); ++t) {
        ENGINE_RETURN_IF_ERROR(CheckClasses(t, count));
        if (slot->tensors[t].IsOverrun()) return Overrun(t);
      }
      done += count;
    }
    return {};
  }

  // Ops and communicators take such numbers for indices. A target of -1 counts for nothing.
  Status CheckClasses(size_t t, int64_t samples) const {
    const SampleTensor& tensor = tensors_[t];
    if (tensor.classes == 0) return {};
    const auto* const begin = static_cast<const int32_t*>(rows_[t]);
    const auto* const end = begin + samples * tensor.shape.Count();
    const int32_t least = t < inputs_ ? 0 : -1;
    const auto* const bad = std::find_if(
        begin, end, [&](int32_t number) { return number < least || number >= tensor.classes; });
    if (bad == end) return {};
    return Status::Error(StatusCode::kPlugin,
                         "%s: %d in '%s', which has %" PRId64
                         " classes; this is an error of its plugin",
                         name_.c_str(), *bad, std::string(tensor.name).c_str(), tensor.classes);
  }

  Status Overrun(size_t t) const {
    return Status::Error(StatusCode::kPlugin,
                         "%s: Fill has written behind the memory of '%s'; this is an error of its "
                         "plugin",
                         name_.c_str(), std::string(tensors_[t].name).c_str());
  }

  // Constant after construction; the memory of a slot belongs to the producer or, when taken, to
  // the consumer.
  const Dataset& dataset_;
  const BatchRequest request_;
  const LoaderOptions options_;
  const std::string name_;
  const size_t inputs_;  // of tensors_, which come first
  const int64_t size_;
  const int64_t steps_per_epoch_;
  std::vector<SampleTensor> tensors_;
  std::vector<Slot> slots_;
  std::vector<void*> rows_;  // of the producer: where the next samples go

  std::mutex mutex_;
  std::condition_variable batch_ready_;
  std::condition_variable_any slot_free_;
  // Guarded by mutex_.
  uint64_t produced_ = 0;
  uint64_t taken_ = 0;
  uint64_t released_ = 0;
  Status error_;

  std::jthread producer_;  // last: it is stopped and joined before anything that it uses goes
};

Status CheckOptions(const DatasetInfo& info, const BatchRequest& request,
                    const LoaderOptions& options) {
  const std::string name(info.name);
  if (SamplesOf(info, request.split) < 1 || info.inputs.empty()) {
    return Status::Error(StatusCode::kInvalidArgument, "%s: there are no samples", name.c_str());
  }
  if (request.global_batch < 1 || options.prefetch < 0 || options.prefetch > kMaxPrefetch ||
      options.timeout_ms < 1 || request.first_step < 0 || request.rank < 0 ||
      request.rank >= request.world_size) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "%s: no batches of %" PRId64
                         " samples for rank %d of %d, %d ahead, within %" PRId64
                         " ms, from step %" PRId64 ": a value is out of range",
                         name.c_str(), request.global_batch, request.rank, request.world_size,
                         options.prefetch, options.timeout_ms, request.first_step);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<train::BatchStream>> LoadBatches(const Dataset& dataset,
                                                        const BatchRequest& request,
                                                        const LoaderOptions& options) {
  ENGINE_RETURN_IF_ERROR(CheckOptions(dataset.info(), request, options));
  const std::string name(dataset.info().name);
  try {
    auto loader = std::make_unique<PrefetchingLoader>(dataset, request, options);
    ENGINE_RETURN_IF_ERROR(loader->Start().WithContext("%s", name.c_str()));
    return std::unique_ptr<train::BatchStream>(std::move(loader));
  } catch (const std::exception& exception) {  // std::bad_alloc, std::system_error of the thread
    return Status::Error(StatusCode::kResourceExhausted, "%s: cannot make batches: %s",
                         name.c_str(), exception.what());
  }
}

}  // namespace engine::data
