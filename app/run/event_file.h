// The figures of a run as TensorBoard reads them: scalars of each step in a file of events.
//
//   file   = record*
//   record = u64 length, u32 crc(length), bytes, u32 crc(bytes)     little-endian; bytes: an Event
//   crc(x) = rotate_right(crc32c(x), 15) + 0xa282ead8               as in tensorflow/core/lib/io/record_writer.h
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "app/run/metrics.h"

namespace engine::run {

class EventFile final : public MetricsSink {
 public:
  // The first record makes a new file in `folder`, which must exist: a run that fails before its first
  // step leaves none, one that goes on adds one, and TensorBoard joins them.
  explicit EventFile(std::string folder) : path_(std::move(folder)) {}
  ~EventFile() override;

  // Tags: loss, accuracy, learning_rate, samples_per_second, communication_share; held_out/NAME;
  // plugins/NAME.
  Status Write(const train::StepReport& report) override;
  Status Write(const train::EvaluationReport& report) override;
  Status WritePluginMetric(int64_t step, int32_t rank, std::string_view name,
                           double value) override;

 private:
  bool Open();
  bool WriteRecord(const std::string& bytes);
  Status WriteEvent(const std::string& bytes);

  std::mutex mutex_;
  // Guarded by mutex_.
  std::FILE* file_ = nullptr;
  std::string path_;  // of the folder, then of the file
};

}  // namespace engine::run
