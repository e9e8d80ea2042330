// Times of single ops of a plugin, on the device that it brings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/plugin_library.h"

namespace engine::bench {

// An op with inputs of a full batch, in memory of its device, and what one call must do at least.
struct TimedCase {
  std::string name;
  std::string op;
  Overrides attributes;
  std::vector<TensorSpec> inputs;
  int64_t classes = 0;      // int32 inputs hold numbers below it
  double forward_flop = 0;  // of one call
  double backward_flop = 0;
};

struct OpTime {
  double forward_us = 0, backward_us = 0;        // medians
  double forward_bytes = 0, backward_bytes = 0;  // read and written once each
};

class OpTimer {
 public:
  // The op plugin at `path` with options of its own.
  static Result<std::unique_ptr<OpTimer>> Load(const std::string& path, const Overrides& options);

  // Queues `calls` calls at once, `rounds` times, after one round that is not counted.
  Result<OpTime> Time(const TimedCase& timed, int calls, int rounds);

  Device& device() { return *library_->device(); }

 private:
  OpTimer(PluginLibrary plugin, std::unique_ptr<OpLibrary> library)
      : plugin_(std::move(plugin)), library_(std::move(library)) {}

  PluginLibrary plugin_;
  std::unique_ptr<OpLibrary> library_;
};

}  // namespace engine::bench
