// What the suites of this process judge: one library, as the command line names it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "tools/conform/ops/device_memory.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

struct Subject {
  PluginUnderTest plugin;
  int ranks = 0;      // -n; 0: as many as a test likes
  uint32_t seed = 1;  // --seed
  // --with: other plugins that a suite needs, such as the op plugin whose device a rank gets.
  std::vector<PluginUnderTest> others;
  std::vector<std::string> inputs;            // --inputs: texts of OpSample (ops/op_search.h)
  std::vector<std::string> custom_gradients;  // --custom-gradient: ops

  // Of a launcher's job: the rank that this process is. Null: ranks are threads.
  base::RankContext* launched = nullptr;

  // `arguments` are those of --set: NAME.KEY=VALUE for the plugin of that name, KEY=VALUE for the
  // one that is judged. Plugins that options name are of --with, else the first of their name in
  // `folders`. kConfig, kPlugin.
  Status SetOptions(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& folders);

  // The one of this kind, or null.
  const PluginUnderTest* Other(PluginKind kind) const;
};

// GoogleTest makes its tests itself and can hand them nothing, so this is where they find it. Set
// once, before they run (child.h).
const Subject& UnderTest();
// Not where tests of this repository use the rigs.
bool HasSubject();
void SetSubject(Subject subject);

// Of a world of one, with the device that an op plugin of --with brings; ops that bring none get the CPU.
inline Host& HostOfOne() {
  static HostDevice cpu;
  static MemoryHost host_of_ops;
  static const PluginUnderTest* const other = UnderTest().Other(PluginKind::kOps);
  static const auto ops = other ? Must(other->Create<OpLibrary>(host_of_ops)) : nullptr;
  const plugins::PluginFile& file = UnderTest().plugin.file();
  const bool lacks_device = file.kind == PluginKind::kOps && file.device == "any";
  static MemoryHost host({}, std::make_shared<MemoryStoreTable>(),
                         ops            ? ops->device()
                         : lacks_device ? static_cast<Device*>(&cpu)
                                        : nullptr);
  return host;
}

// An object of it, for a world of one unless there is a host.
template <typename T>
std::unique_ptr<T> Make(const OptionValues::Overrides& overrides = {}, Host* host = nullptr) {
  return Must(UnderTest().plugin.Create<T>(host ? *host : HostOfOne(), overrides));
}

}  // namespace engine::conform
