// `engine report`.
#pragma once

namespace CLI {
class App;
}

namespace engine::report {

// Adds the subcommand; its exit code goes to *exit_code.
void AddReportCommand(CLI::App& app, int* exit_code);

}  // namespace engine::report
