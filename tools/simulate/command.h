// `engine simulate`.
#pragma once

#include "app/command/command.h"

namespace CLI {
class App;
}

namespace engine {

// Adds the subcommand; its exit code goes to *exit_code. `environment` is borrowed.
void AddSimulateCommand(CLI::App& app, const Environment& environment, int* exit_code);

}  // namespace engine
