// `engine simulate`.
#pragma once

#include "app/command/command.h"

namespace CLI {
class App;
}

namespace engine::simulate {

// Adds the subcommand; its exit code goes to *exit_code. `environment` is borrowed.
void AddSimulateCommand(CLI::App& app, const command::Environment& environment, int* exit_code);

}  // namespace engine::simulate
