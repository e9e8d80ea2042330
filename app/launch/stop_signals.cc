#include "app/launch/stop_signals.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <system_error>

#include "app/launch/deadlines.h"

namespace engine::launch {

StopSignals::StopSignals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : kStopSignals) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&wanted, signal);
  }
  fd_ = kit::UniqueFd(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) throw std::system_error(errno, std::generic_category(), "signalfd");
  pthread_sigmask(SIG_BLOCK, &wanted, &previous_mask_);
}

StopSignals::~StopSignals() {
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

int StopSignals::Read() const {
  signalfd_siginfo info{};
  while (read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (next_counts_from_ && !base::Passed(*next_counts_from_)) continue;
    if (!next_counts_from_) next_counts_from_ = base::DeadlineIn(kSecondSignalMs);
    return static_cast<int>(info.ssi_signo);
  }
  return 0;
}

void StopSignals::Die(int signal) const {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
}

std::string SignalName(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "a signal";
}

Status StoppedBeforeTheStart(int signal) {
  return Status::Error(StatusCode::kInterrupted, "stopped by %s before all ranks were there",
                       SignalName(signal).c_str());
}

}  // namespace engine::launch
