// Which of the chosen plugins fills which role of a run.
#pragma once

#include <string>
#include <vector>

#include "app/plugins/catalog.h"

namespace engine::plugins {

// Whether a run has one plugin of this kind: of ops the one that brings the device.
bool FillsRole(const plugin::PluginEntry& entry);

// Sorts chosen plugins into roles: exactly one communicator, scheduler, optimizer and one op plugin
// with a device, any number of further op plugins and hooks; no op twice. kPlugin names the two that
// fight for one role or op, or the role that nobody fills and the plugins found that could. Datasets
// and models are not among them: their blocks choose them.
Result<plugin::PluginSelection> AssignRoles(const std::vector<plugin::PluginChoice>& chosen,
                                            const PluginCatalog& catalog);

// What a process knows of the network of its host: an interface to use, and an address at which other hosts
// reach it. Each may be empty.
struct HostNetwork {
  std::string interface, address;
};
// Gives them to a communicator, and to those inside of it, that has options `interface` and `hostname` of which
// the user has set neither: the interface, else the address as `hostname`.
void UseNetwork(const HostNetwork& network, plugin::PluginChoice* communicator);

// All chosen ones and those inside of them, each once; borrowed.
std::vector<const plugin::PluginEntry*> EntriesOf(const plugin::PluginSelection& selection);

// Their names with spaces between.
std::string NamesOf(const plugin::PluginSelection& selection);

// PluginSelection::versions, of the files as they are now.
std::string VersionsOf(const plugin::PluginSelection& selection);

// PluginSelection::resolve_op. The error of an op that nobody offers has the nearest name.
Result<plugin::ResolvedOp> ResolveOp(const std::vector<plugin::PluginChoice>& plugins,
                                     const std::string& name,
                                     const std::vector<plugin::OwnedOption>& given);

}  // namespace engine::plugins
