// Plugins inside of plugins: what a Host offers to one that stands around another (throttle,
// record, faults made on purpose) or chooses between several (by size, inside and between hosts).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/communicator.h"
#include "engine/options.h"
#include "engine/scheduler.h"
#include "engine/status.h"

namespace engine {

// What an inner object is made of.
struct InnerPlugin {
  uint64_t struct_size = sizeof(InnerPlugin);
  // Its name: the value of an option of type kPlugin of the plugin that asks. (So all plugins of a
  // run are known, and compared between ranks, before one of them runs.)
  TextView plugin = {};
  // Options that are set here; others have the value that the user gave in the block of that
  // plugin, else their default.
  Array<const OptionValue> options = {};
  // [a-z][a-z0-9_]*: tells apart what one plugin makes inside of another: their keys in the store
  // are their own, and so are their lines in the log
  TextView label = {};
};
ENGINE_LAYOUT(InnerPlugin, struct_size, plugin, options, label);

// Query<InnerPlugins> of a Host gives one or null. Call it in the create function alone. What is
// made belongs to the caller, who deletes it no later than in the destructor of its own object.
// Errors name the inner plugin: kPlugin when there is none of the name and role, kConfig for an
// option.
ENGINE_INTERFACE(InnerPlugins, Interface, "engine.inner_plugins.draft/1", CreateCommunicator,
                 CreateScheduler);
class InnerPluginsBase : public Implements<InnerPlugins> {
 public:
  // A communicator of `ranks`, ascending and this one among them; empty: of all. They are those of
  // Host::rank_info() of the plugin that asks, whose groups may be divided once more. In the new
  // one ranks count from 0 in that order, Transfer::root among them; its Host has a RankInfo as if
  // there were no others, without servers. Errors, also of its Works, name ranks as those of the
  // asking plugin do; those of its extensions name its own. Collective over these ranks. The run's
  // abort reaches one of some ranks; an Abort of the asking plugin is its to hand on to all.
  // kInvalidArgument for another list. [setup]
  virtual Status CreateCommunicator(const InnerPlugin& inner, std::span<const int32_t> ranks,
                                    Communicator** out) noexcept = 0;
  // A scheduler for this rank; not collective. [setup]
  virtual Status CreateScheduler(const InnerPlugin& inner, Scheduler** out) noexcept = 0;

 protected:
  ~InnerPluginsBase() = default;
};

}  // namespace engine
