// What every thread of this plugin does first.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace engine::zmq_ps {

// Names the calling thread (15 characters at most); signals are for the threads of the host.
inline void PrepareThread(const char* name) noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

}  // namespace engine::zmq_ps
