// The figures of a run as TensorBoard reads them: scalars of each step in a file of events.
//
//   file   = record*
//   record = u64 length, u32 crc(length), bytes, u32 crc(bytes)     little-endian; bytes: an Event
//   crc(x) = rotate_right(crc32c(x), 15) + 0xa282ead8               as in tensorflow/core/lib/io/record_writer.h
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "app/run/metrics.h"

namespace engine::run {

class EventFile final : public MetricsSink {
 public:
  // A new file in `folder`, which must exist: a run that goes on adds one, and TensorBoard joins them.
  // kStorage.
  static Result<std::unique_ptr<EventFile>> Open(const std::string& folder);
  ~EventFile() override;

  // Tags: loss, accuracy, learning_rate, samples_per_second, communication_share; held_out/NAME;
  // plugins/NAME.
  Status Write(const train::StepReport& report) override;
  Status Write(const train::EvaluationReport& report) override;
  Status WriteCheckpoint(int64_t, const std::string&) override { return {}; }
  Status WritePluginMetric(int64_t step, int32_t rank, std::string_view name,
                           double value) override;

 private:
  EventFile(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  Status WriteRecord(const std::string& bytes);

  std::mutex mutex_;
  std::FILE* const file_;  // guarded by mutex_
  const std::string path_;
};

}  // namespace engine::run
