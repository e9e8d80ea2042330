#include "app/launch/rank_process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/launch/deadlines.h"
#include "app/launch/exit_code.h"
#include "app/launch/failure_log.h"
#include "app/launch/limits.h"
#include "app/launch/log.h"
#include "core/base/call_watch.h"

namespace engine::launch {

RankProcess::RankProcess(const RankInfo& info, const StopSignals& signals, SecondSignal second,
                         const LaunchOptions& options)
    : info_(info),
      signals_(&signals),
      second_(second),
      options_(&options),
      rendezvous_timeout_ms_(options.rendezvous_timeout_ms),
      quit_(eventfd(0, EFD_CLOEXEC)) {
  if (!quit_) throw std::system_error(errno, std::generic_category(), "eventfd");
  watch_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "watch");
    Watch();
  });
}

RankProcess::~RankProcess() {
  if (!watch_.joinable()) return;
  eventfd_write(quit_.get(), 1);
  watch_.join();
}

// Signals, and work that hangs: whoever could kill this process may be stopped himself, or not be
// there at all.
void RankProcess::Watch() {
  const int64_t grace_ms = options_->grace_ms + kHangingProcessMs;
  base::TimePoint end = base::TimePoint::max();
  pollfd fds[] = {{signals_->fd(), POLLIN, 0}, {quit_.get(), POLLIN, 0}};
  while (fds[1].revents == 0) {
    poll(fds, std::size(fds), kPollMs);
    while (const int signal = signals_->Read()) OnSignal(signal);
    end = abort_.raised() ? std::min(end, base::DeadlineIn(grace_ms)) : base::TimePoint::max();
    if (base::Passed(end) && !worked_) EndHangingWork();
  }
}

// The thread of the work hangs, so nothing can return to the command line.
void RankProcess::EndHangingWork() {
  Status known, overdue;
  {
    const std::lock_guard lock(mutex_);
    known = cause();
    overdue = overdue_;
  }
  const Status reason = known.ok() ? abort_.reason() : AbortReason(known);
  const StatusCode code = known.ok() ? reason.code() : known.code();
  if (options_->notice) {
    options_->notice(
        base::MemberName(base::MemberOf(info_)) + ": " + reason.message() + "; its own work hangs" +
        (overdue.ok() ? "" : " (" + std::string(overdue.message()) + ")") + " and was ended " +
        std::to_string(options_->grace_ms + kHangingProcessMs) + " ms later");
  }
  const int signal = code == StatusCode::kInterrupted ? stop_requested() : 0;
  _exit(signal != 0 ? 128 + signal : ExitCode(code));
}

Status RankProcess::Run(kit::UniqueFd socket, const StoreClient::Identity& identity,
                        const RankBody& body) {
  const base::TimePoint deadline = base::DeadlineIn(rendezvous_timeout_ms_ + kRendezvousGraceMs);
  auto client =
      std::make_unique<StoreClient>(std::move(socket), identity, abort_,
                                    [this](int signal, bool started) { Stop(signal, started); });
  {
    std::lock_guard lock(mutex_);
    client_ = std::move(client);
  }
  Status status = client_->Join(deadline);
  if (status.ok()) status = Told(Work(body));
  worked_ = true;
  // Before the report, which else would end the run as a failure of this member.
  if (status.code() == StatusCode::kInterrupted && stop_requested() != 0) {
    client_->RequestStop(stop_requested());
  }
  client_->Leave(status);
  return status;
}

// It may come from a plugin: so it is one line of some length, and blames a member of the run. A
// contract that was broken is no mistake in the use of the command.
Status RankProcess::Told(const Status& end) const {
  const Status known = client_->Explain(WithLimits(end));
  if (known.ok()) return known;
  const bool is_broken = known.code() == StatusCode::kInvalidArgument;
  return Status::Error(is_broken ? StatusCode::kPlugin : known.code(), "%s",
                       PrintableLine(known.message()).c_str())
      .WithRank(client_->shape().Has(known.rank()) ? known.rank() : base::kNobody);
}

// Once ranks were lost for good, the others have other numbers.
RankInfo RankProcess::PlaceNow() const {
  const std::vector<int> left = client_->shape().left;
  RankInfo info = info_;
  if (left.empty()) return info;
  info.rank = static_cast<int32_t>(std::ranges::find(left, info_.rank) - left.begin());
  info.world_size = static_cast<int32_t>(left.size());
  if (info.one_host == 0) return info;
  info.local_rank = info.rank;
  info.local_world_size = info.world_size;
  return info;
}

Status RankProcess::Work(const RankBody& body) {
  const RunShape shape = client_->shape();
  info_.world_size = shape.world_size;
  info_.servers = shape.servers;
  info_.one_host = shape.one_host ? 1 : 0;
  base::RankContext context{.info = PlaceNow(),
                            .store = *client_,
                            .abort = abort_,
                            .stop_requested = stop_requested_,
                            .allow_losses = [this] { (void)client_->Set(kLossesAllowedKey, ""); },
                            .report = [this](const Status& why) { client_->Report(Told(why)); }};
  base::CallWatch watch(abort_, kTransferTimeoutMs, base::kCallLookMs, [&](const Status& overdue) {
    {
      const std::lock_guard lock(mutex_);
      overdue_ = overdue;
    }
    context.Report(overdue);
  });
  context.watch = &watch;
  context.regroup = [&](const Status& cause) -> Status {
    ENGINE_RETURN_IF_ERROR(
        client_->Rejoin(cause, base::DeadlineIn(2 * rendezvous_timeout_ms_ + kRendezvousGraceMs)));
    context.info = PlaceNow();
    return Status();
  };
  try {
    return body(context);
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "no memory left for its work");
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kInternal, "an exception left its work: %s", error.what());
  } catch (...) {
    return Status::Error(StatusCode::kInternal, "an unknown exception left its work");
  }
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
  if (!started) abort_.Raise(StoppedBeforeTheStart(signal));
}

}  // namespace engine::launch
