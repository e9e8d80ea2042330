#include "app/launch/rank_process.h"

#include <exception>
#include <utility>

#include "app/launch/deadlines.h"
#include "core/base/call_watch.h"

namespace engine::launch {
Status CallBody(const RankBody& body, base::RankContext& context) {
  try {
    return body(context);
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kInternal, "an exception left its work: %s", error.what());
  } catch (...) {
    return Status::Error(StatusCode::kInternal, "an unknown exception left its work");
  }
}

RankProcess::RankProcess(const RankInfo& info, const StopSignals& signals, SecondSignal second)
    : info_(info), signals_(&signals), second_(second) {
  signal_thread_.emplace(signals, [this](int signal) { OnSignal(signal); });
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
    base::CallWatch watch(abort_);
    context.watch = &watch;
    status = CallBody(body, context);
  }
  client_->Leave(status);
  return status;
}

void RankProcess::OnSignal(int signal) {
  if (first_signal_ == 0) {
    first_signal_ = signal;
    second_counts_from_ = base::DeadlineIn(kSecondSignalMs);
  } else if (second_ == SecondSignal::kDie && base::Passed(second_counts_from_)) {
    signals_->Die(signal);
  }
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
