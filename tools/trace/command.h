// `engine trace`.
#pragma once

#include "app/command/command.h"

namespace CLI {
class App;
}

namespace engine::trace {

// Adds the subcommand; its exit code goes to *exit_code.
void AddTraceCommand(CLI::App& app, int* exit_code);

}  // namespace engine::trace
