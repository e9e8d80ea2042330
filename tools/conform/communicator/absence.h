// Which suites are not for the communicator under test, and why: for Suite::absent.
#pragma once

#include <string>

namespace engine::conform {

std::string NothingFails();
std::string NoProcesses();
std::string NoSharedMemory();
std::string NoGroupedTransfers();
std::string NoSubGroups();
std::string NoRecordedTransfers();
std::string NoWireProgress();
std::string NoLinkCost();
std::string NoParameterServer();

}  // namespace engine::conform
