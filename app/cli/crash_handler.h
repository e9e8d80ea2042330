// Says which plugin a crash happened in.
#pragma once

#include "engine/status.h"

namespace engine::cli {

// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write one line to `fd`,
//   engine: crashed with SIGSEGV in plugin 'x' (/path/libengine_x.so)
// and then end the process with that signal; with the exit code of want of a resource when there is
// one of which none is left, and of a missing input when a mapped file became shorter. The plugin, a library libengine_*.so, is that of the
// faulting instruction, else that of the nearest caller ("in code called by plugin 'x'"), else none
// is named. Gives the calling thread an alternate stack, so that there an overflow of the stack is
// reported too. kInternal when the system refuses. Call once, from main, before plugins are loaded.
Status InstallCrashHandler(int fd = 2);

}  // namespace engine::cli
