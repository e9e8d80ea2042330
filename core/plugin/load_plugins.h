// From a selection to one rank's plugin objects.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/plugin/plugin_set.h"
#include "engine/dataset.h"
#include "engine/model.h"

namespace engine::plugin {

// Gives the Host for one plugin; the Host must outlive the set. `plugin` is the plugin's name.
using HostFactory = std::function<Host&(const std::string& plugin)>;

// Sorts chosen plugins into roles: exactly one communicator, scheduler, optimizer and one op plugin
// with a device, any number of further op plugins and hooks. kPlugin names the two that fight for
// one role, or the role that nobody fills and the plugins found that could. Datasets and models are not
// among them: their blocks choose them.
Result<PluginSelection> AssignRoles(const std::vector<PluginChoice>& chosen,
                                    const PluginCatalog& catalog);

// Loads the libraries and makes the objects in the order ops, communicator, optimizer, hooks,
// scheduler. `on_device` is called with the device before the communicator is made. Two op plugins
// that offer the same op are an error that names both.
Result<PluginSet> CreatePlugins(const PluginSelection& selection, const HostFactory& host_of,
                                const std::function<void(Device*)>& on_device);

// A dataset, not yet opened, and a model. What an option gets wrong is named with the place of the
// plugin's block. `choice` and `host` must outlive the object.
Result<std::unique_ptr<Dataset>> CreateDataset(const PluginChoice& choice, Host& host);
Result<std::unique_ptr<Model>> CreateModel(const PluginChoice& choice, Host& host);

// As CreatePlugins for a server: the communicator and the optimizer, nothing else. There is no device.
Result<PluginSet> CreateServerPlugins(const PluginSelection& selection, const HostFactory& host_of);

}  // namespace engine::plugin
