#include "app/launch/rank_process.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "app/launch/deadlines.h"
#include "app/launch/exit_code.h"
#include "app/launch/failure_log.h"
#include "app/launch/limits.h"
#include "core/base/call_watch.h"

namespace engine::launch {
Status CallBody(const RankBody& body, base::RankContext& context) {
  try {
    return WithLimits(body(context));
  } catch (const std::bad_alloc&) {
    return WithLimits(Status::Error(StatusCode::kResourceExhausted, "no memory left for its work"));
  } catch (const std::exception& error) {
    return WithLimits(
        Status::Error(StatusCode::kInternal, "an exception left its work: %s", error.what()));
  } catch (...) {
    return Status::Error(StatusCode::kInternal, "an unknown exception left its work");
  }
}

RankProcess::RankProcess(const RankInfo& info, const StopSignals& signals, SecondSignal second,
                         const LaunchOptions& options)
    : info_(info), signals_(&signals), second_(second), options_(&options) {
  signal_thread_.emplace(signals, [this](int signal) { OnSignal(signal); });
  end_watch_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "end_watch");
    EndIfItHangs();
  });
}

RankProcess::~RankProcess() {
  ended_.release();
  if (end_watch_.joinable()) end_watch_.join();
}

// Whoever could kill this process may be stopped himself, or not be there at all. Its own thread
// hangs, so nothing can return to the command line: it is ended here.
void RankProcess::EndIfItHangs() {
  const std::chrono::milliseconds grace(options_->grace_ms + kHangingProcessMs);
  while (!abort_.raised()) {
    if (ended_.try_acquire_for(std::chrono::milliseconds(kPollMs))) return;
  }
  if (ended_.try_acquire_for(grace)) return;
  Status known, overdue;
  {
    const std::lock_guard lock(mutex_);
    known = cause();
    overdue = overdue_;
  }
  const Status reason = known.ok() ? abort_.reason() : AbortReason(known);
  const StatusCode code = known.ok() ? reason.code() : known.code();
  if (options_->notice) {
    options_->notice(base::MemberName(base::MemberOf(info_)) + ": " + reason.message() +
                     "; its own work hangs" +
                     (overdue.ok() ? "" : " (" + std::string(overdue.message()) + ")") +
                     " and was ended " + std::to_string(grace.count()) + " ms later");
  }
  const int signal = code == StatusCode::kInterrupted ? stop_requested() : 0;
  _exit(signal != 0 ? 128 + signal : ExitCode(code));
}

Status RankProcess::Run(kit::UniqueFd socket, const StoreClient::Identity& identity,
                        int64_t join_timeout_ms, const RankBody& body) {
  base::TimePoint deadline = base::DeadlineIn(join_timeout_ms);
  auto client =
      std::make_unique<StoreClient>(std::move(socket), identity, abort_,
                                    [this](int signal, bool started) { Stop(signal, started); });
  {
    std::lock_guard lock(mutex_);
    client_ = std::move(client);
  }
  Status status = client_->Join(deadline);
  if (status.ok()) {
    const RunShape shape = client_->shape();
    info_.world_size = shape.world_size;
    info_.servers = shape.servers;
    info_.one_host = shape.one_host ? 1 : 0;
    base::RankContext context{info_, *client_, abort_, stop_requested_,
                              [this] { client_->AllowLosses(); }};
    context.report = [this](const Status& why) {
      client_->Report(client_->Explain(WithLimits(why)));
    };
    base::CallWatch watch(abort_, kTransferTimeoutMs, base::kCallLookMs,
                          [&](const Status& overdue) {
                            {
                              const std::lock_guard lock(mutex_);
                              overdue_ = overdue;
                            }
                            context.Report(overdue);
                          });
    context.watch = &watch;
    status = client_->Explain(CallBody(body, context));
  }
  ended_.release();
  // Before the report, which else would end the run as a failure of this member.
  if (status.code() == StatusCode::kInterrupted && stop_requested() != 0) {
    client_->RequestStop(stop_requested());
  }
  client_->Leave(status);
  return status;
}

void RankProcess::OnSignal(int signal) {
  if (std::exchange(signalled_, true) && second_ == SecondSignal::kDie) signals_->Die(signal);
  StoreClient* client = nullptr;  // set once, and there as long as this
  {
    std::lock_guard lock(mutex_);
    client = client_.get();
  }
  Stop(signal, client != nullptr && client->started());
  if (client != nullptr) client->RequestStop(signal);
}

void RankProcess::Stop(int signal, bool started) {
  if (started && info_.is_server != 0) return;  // it serves until the ranks have stopped
  int none = 0;
  stop_requested_.compare_exchange_strong(none, signal);
  if (!started) {
    abort_.Raise(Status::Error(StatusCode::kInterrupted,
                               "stopped by %s before all ranks were there", SignalName(signal)));
  }
}

}  // namespace engine::launch
