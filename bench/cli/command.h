// `engine bench train`, `collectives`, `cluster` and `hosts`.
#pragma once

#include "app/command/command.h"

namespace CLI {
class App;
}

namespace engine {

// Adds the subcommand; its exit code goes to *exit_code. `environment` is borrowed.
void AddBenchCommand(CLI::App& app, const command::Environment& environment, int* exit_code);

}  // namespace engine
