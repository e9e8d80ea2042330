// A step on an accelerator: nothing that it computes is known to the host when the work is queued.
#pragma once

#include <memory>

#include "core/exec/host_step.h"

namespace engine::exec {

// kConfig names what cannot work with the memory of the device.
Result<std::unique_ptr<HostStep>> MakeDeviceStep(const StepParts& parts);

}  // namespace engine::exec
