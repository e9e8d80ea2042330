// A communicator that takes part in a sweep.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plugin/plugin_host.h"
#include "core/plugin/plugin_set.h"
#include "engine/ext/shared_memory.h"

namespace engine::bench {

// `plugin`: a name, looked up in `folders`, or the path of a library (with a slash in it).
// `overrides`: "timeout=3" or "tcp.timeout=3", also of plugins inside of it. kPlugin when there is no such plugin, kConfig when an
// option is unknown or wrong.
Result<plugin::PluginChoice> ChoosePlugin(const std::string& plugin,
                                          const std::vector<std::string>& overrides,
                                          const std::vector<std::string>& folders);

// Whether "tcp.timeout=3" is for the plugin or for one inside of it.
bool Takes(const plugin::PluginChoice& choice, const std::string& override);

struct Contender {
  std::string label;  // "A", "B"
  plugin::PluginChoice choice;
};

// ChoosePlugin, kPlugin also when it is no communicator, kConfig also when an option is missing.
// `leaves_others`: overrides name their plugin, and those of others are no error.
Result<Contender> FindContender(const std::string& label, const std::string& plugin,
                                std::vector<std::string> overrides,
                                const std::vector<std::string>& folders,
                                bool leaves_others = false);

// A contender's object on one rank. Collective; the run's abort ends its waits.
class LiveContender {
 public:
  static Result<std::unique_ptr<LiveContender>> Create(const Contender& contender,
                                                       base::RankContext& rank);
  ~LiveContender();

  const CommunicatorTraits& traits() const { return traits_; }
  // That it lends for buffers in host memory, or null.
  SharedMemory* memory() const {
    return traits_.device_memory != 0 ? nullptr : Query<SharedMemory>(*communicator_);
  }
  // Submits the transfer and waits for it.
  Status Run(Transfer transfer);

 private:
  explicit LiveContender(base::RankContext& rank) : rank_(rank) {}

  base::RankContext& rank_;
  Device* device_ = nullptr;
  std::unique_ptr<plugin::PluginHost> host_;
  std::unique_ptr<Communicator> communicator_;
  CommunicatorTraits traits_;
  uint64_t sequence_ = 0;
  int abort_token_ = 0;
};

}  // namespace engine::bench
