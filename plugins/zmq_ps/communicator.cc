#include "communicator.h"

#include <utility>

#include "kit/communicator.h"
#include "kit/lanes.h"
#include "wire.h"

namespace engine::zmq_ps {

constexpr uint32_t kServedKinds = Bit(TransferKind::kPush) | Bit(TransferKind::kPull);

ZmqPsCommunicator::ZmqPsCommunicator(Host& host, const CommunicatorSettings& settings)
    : host_(host),
      ranks_(host.rank_info()),
      update_(settings.UpdateFor(ranks_)),
      link_cost_{.message_bytes = settings.connection.flow.slice_bytes} {}

Result<std::unique_ptr<ZmqPsCommunicator>> ZmqPsCommunicator::Create(
    Host& host, const CommunicatorSettings& settings) {
  std::unique_ptr<ZmqPsCommunicator> communicator(new ZmqPsCommunicator(host, settings));
  const RankInfo& ranks = communicator->ranks_;
  if (ranks.world_size > 1 || ranks.servers > 0 || communicator->update_) {
    ENGINE_RETURN_IF_ERROR(communicator->Connect(settings));
  }
  return communicator;
}

// The server first: the worker of this rank connects to it like to any other, and its failure is
// the server's, so that other ranks hear the cause.
Status ZmqPsCommunicator::Connect(const CommunicatorSettings& settings) {
  Rendezvous rendezvous(host_, settings);
  ENGINE_ASSIGN_OR_RETURN(ServerSettings server, rendezvous.Meet());
  if (rendezvous.hosts_server()) {
    ENGINE_ASSIGN_OR_RETURN(server_, Server::Start(std::move(server)));
  }
  ENGINE_RETURN_IF_ERROR(rendezvous.Publish(server_.get()));
  ENGINE_ASSIGN_OR_RETURN(WorkerSettings worker, rendezvous.FindServers());
  worker.on_failure = [this](const Status& farewell) {
    if (server_) server_->Fail(farewell);
  };
  worker.gate = &works_.gate();
  ENGINE_ASSIGN_OR_RETURN(worker_, Worker::Connect(std::move(worker), rendezvous.deadline()));
  if (!update_) return {};
  parameters_ = std::make_unique<ServedParameters>(*update_, settings.connection.flow.slice_bytes,
                                                   *worker_, works_, [this](Optimizer& optimizer) {
                                                     if (server_) server_->Serve(optimizer);
                                                   });
  return {};
}

void* ZmqPsCommunicator::Query(std::string_view id) noexcept {
  if (id == LinkModel::kId) return static_cast<LinkModel*>(this);
  if (id == WireProgress::kId) return static_cast<WireProgress*>(worker_.get());
  if (id != ParameterClient::kId || !parameters_) return nullptr;
  return static_cast<ParameterClient*>(parameters_.get());
}

// The worker says that it leaves, and then the own server waits a moment for ranks that still fetch
// their answers from it.
ZmqPsCommunicator::~ZmqPsCommunicator() {
  const bool failed = worker_ && worker_->failed();
  worker_.reset();
  if (server_) server_->Stop(DrainMs(failed));
  server_.reset();  // its threads may use the optimizer until then
}

CommunicatorTraits ZmqPsCommunicator::traits() const noexcept {
  return {.kinds = parameters_ ? kit::kCollectives | kServedKinds : kit::kCollectives,
          .dtypes = kit::kAllDTypes,
          .ordered = 0,
          .max_in_flight = 0,
          .no_op = 0};
}

Status ZmqPsCommunicator::Check(const Transfer& transfer) const noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, "zmq_ps", TransferKind::kPull));
  if (transfer.count > static_cast<int64_t>(kMaxElements)) {
    return kit::InvalidTransfer("count", transfer.count);
  }
  if ((Bit(transfer.kind) & kServedKinds) == 0 || parameters_) return {};
  return Status::Error(StatusCode::kUnsupported,
                       "%s: the ranks of this run update their parameters themselves (option "
                       "update of zmq_ps)",
                       Describe(transfer, OperationOf(transfer.kind)).c_str());
}

// A refused work never reached the worker, so nobody else holds it and it is completed here. Where
// there is no worker nothing is pending, and a failure is all that is to be remembered.
Status ZmqPsCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  if (worker_ && worker_->failed()) return worker_->reason();
  if (alone_failed_.raised()) return alone_failed_.reason();
  ENGINE_RETURN_IF_ERROR(Check(transfer));
  ENGINE_ASSIGN_OR_RETURN(TransferWork* const work, works_.Take(transfer));
  Status refused = Bit(transfer.kind) & kServedKinds ? parameters_->Prepare(work) : Status();
  if (refused.ok() && worker_) refused = worker_->Submit(work);
  if (!refused.ok()) {
    work->Complete(refused);
    work->Release();
    return refused;
  }
  if (!worker_) {
    work->MarkStarted();
    kit::CopyOwn(transfer);
    work->Complete({});
  }
  *out = work;
  return {};
}

void ZmqPsCommunicator::Abort(const Status& reason) noexcept {
  if (!worker_) return alone_failed_.Abort(reason);
  worker_->Abort(reason, Status::Error(StatusCode::kPeerLost, "rank %d was stopped: %s",
                                       ranks_.rank, reason.message())
                             .WithRank(ranks_.rank));
}

}  // namespace engine::zmq_ps
