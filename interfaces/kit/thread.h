// Threads of a plugin.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace engine::kit {

// Runs `body` on a new thread with this name, of at most 15 characters. Signals are for the threads
// of the host.
template <typename Body>
std::thread StartThread(const char* name, Body body) {
  std::thread thread([body = std::move(body)]() mutable {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    body();
  });
  pthread_setname_np(thread.native_handle(), std::string(name, strnlen(name, 15)).c_str());
  return thread;
}

// A short pause of a thread that looks at memory again and again.
inline void Pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace engine::kit
