#include "communicator.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "describe.h"
#include "kit/communicator.h"
#include "rendezvous.h"

namespace engine::zmq_ps {
namespace {

constexpr uint32_t kAllKinds = Bit(TransferKind::kAllReduce) | Bit(TransferKind::kReduceScatter) |
                               Bit(TransferKind::kAllGather) | Bit(TransferKind::kBroadcast) |
                               Bit(TransferKind::kBarrier);
constexpr uint32_t kServedKinds = Bit(TransferKind::kPush) | Bit(TransferKind::kPull);
constexpr uint32_t kAllDTypes = Bit(DType::kFloat32) | Bit(DType::kInt32) | Bit(DType::kUint8) |
                                Bit(DType::kBFloat16) | Bit(DType::kFloat16);
// How long a rank that is done stays for the sake of others that still fetch their results.
constexpr int64_t kDrainMs = 2000;

void CopyAlone(const Transfer& transfer) noexcept {
  if (transfer.kind == TransferKind::kBarrier || transfer.count == 0) return;
  if (!transfer.recv || transfer.send == transfer.recv) return;
  const size_t bytes = static_cast<size_t>(transfer.count) * SizeOf(transfer.dtype);
  std::memcpy(transfer.recv, transfer.send, bytes);
}

}  // namespace

ZmqPsCommunicator::ZmqPsCommunicator(Host& host, const CommunicatorSettings& settings)
    : host_(host),
      ranks_(host.rank_info()),
      update_(UpdateOf(settings, ranks_)),
      ordered_(settings.ordered && !update_),
      link_cost_{.message_bytes = settings.flow.slice_bytes} {}

Result<std::unique_ptr<ZmqPsCommunicator>> ZmqPsCommunicator::Create(
    Host& host, const CommunicatorSettings& settings) {
  std::unique_ptr<ZmqPsCommunicator> communicator(new ZmqPsCommunicator(host, settings));
  const RankInfo& ranks = communicator->ranks_;
  if (ranks.world_size > 1 || ranks.servers > 0 || communicator->update_) {
    ENGINE_RETURN_IF_ERROR(communicator->Connect(settings));
  }
  return communicator;
}

// The server first: the worker of this rank connects to it like to any other, and its failure is the
// server's, so that other ranks hear the cause.
Status ZmqPsCommunicator::Connect(const CommunicatorSettings& settings) {
  Rendezvous rendezvous(host_, settings.rendezvous);
  ServerSettings server = ServerSettingsOf(settings, host_);
  ENGINE_RETURN_IF_ERROR(rendezvous.Meet(&server));
  if (rendezvous.hosts_server()) {
    ENGINE_ASSIGN_OR_RETURN(server_, Server::Start(std::move(server)));
    ENGINE_RETURN_IF_ERROR(rendezvous.Publish(*server_));
  }
  WorkerSettings worker{.channel = {.worker = static_cast<uint32_t>(ranks_.rank),
                                    .world_size = static_cast<uint32_t>(ranks_.world_size),
                                    .incarnation = static_cast<uint32_t>(ranks_.incarnation),
                                    .flow = settings.flow,
                                    .lost_after_ms = settings.lost_after_ms,
                                    .heartbeat = settings.heartbeat},
                        .ordered = ordered_,
                        .io_threads = settings.io_threads,
                        .on_failure =
                            [this](const Status& farewell) {
                              if (server_) server_->Fail(farewell);
                            },
                        .gate = &works_.gate()};
  ENGINE_RETURN_IF_ERROR(rendezvous.FindServers(&worker));
  ENGINE_ASSIGN_OR_RETURN(worker_, Worker::Connect(std::move(worker), rendezvous.deadline()));
  if (!update_) return {};
  parameters_ = std::make_unique<ServedParameters>(*update_, settings.flow.slice_bytes, *worker_,
                                                   works_, [this](Optimizer& optimizer) {
                                                     if (server_) server_->Serve(optimizer);
                                                   });
  return {};
}

void* ZmqPsCommunicator::Query(std::string_view id) noexcept {
  if (id == kLinkCostId) return &link_cost_;
  if (id == kSecondOrderId && ordered_) return static_cast<Communicator*>(&second_order_);
  if (id != kParameterClientId || !parameters_) return nullptr;
  return static_cast<ParameterClient*>(parameters_.get());
}

// The worker says that it leaves, and then the own server waits a moment for ranks that still fetch
// their answers from it.
ZmqPsCommunicator::~ZmqPsCommunicator() {
  worker_.reset();
  if (server_) server_->Stop(kDrainMs);
  server_.reset();  // its threads may use the optimizer until then
}

CommunicatorTraits ZmqPsCommunicator::traits() const noexcept {
  return {.kinds = parameters_ ? kAllKinds | kServedKinds : kAllKinds,
          .dtypes = kAllDTypes,
          .ordered = ordered_ ? 1u : 0u,
          .max_in_flight = 0,
          .no_op = 0};
}

Status ZmqPsCommunicator::Check(const Transfer& transfer) const noexcept {
  ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, "zmq_ps", TransferKind::kPull));
  if (transfer.count > static_cast<int64_t>(kMaxElements)) {
    return kit::InvalidTransfer("count", transfer.count);
  }
  if ((Bit(transfer.kind) & kServedKinds) == 0) return {};
  if (parameters_) return parameters_->Check(transfer);
  return Status::Error(StatusCode::kUnsupported,
                       "%s: the ranks of this run update their parameters themselves (option "
                       "update of zmq_ps)",
                       Describe(transfer, OperationOf(transfer.kind)).c_str());
}

Status ZmqPsCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  return Submit(transfer, /*order=*/0, out);
}

CommunicatorTraits ZmqPsCommunicator::SecondOrder::traits() const noexcept {
  CommunicatorTraits traits = first_.traits();
  traits.kinds = kAllKinds;
  return traits;
}

Status ZmqPsCommunicator::SecondOrder::Submit(const Transfer& transfer, Work** out) noexcept {
  return first_.Submit(transfer, /*order=*/1, out);
}

Status ZmqPsCommunicator::Submit(const Transfer& transfer, uint64_t order, Work** out) noexcept {
  if (worker_ && worker_->failed()) return worker_->reason();
  if (alone_failed_.raised()) return alone_failed_.reason();
  ENGINE_RETURN_IF_ERROR(Check(transfer));
  ENGINE_ASSIGN_OR_RETURN(TransferWork* const work, works_.Take(transfer));
  if (Bit(transfer.kind) & kServedKinds) parameters_->Prepare(work);
  work->order = order;
  if (!worker_) {
    work->MarkStarted();
    CopyAlone(transfer);
    work->Complete({});
  } else if (const Status refused = worker_->Submit(work); !refused.ok()) {
    work->Complete(refused);
    work->Release();
    return refused;
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
