#include "communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "describe.h"
#include "kit/communicator.h"

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

void RunAlone(const Transfer& transfer) noexcept {
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
      link_cost_{.message_bytes = settings.slice_bytes},
      pool_(std::make_shared<WorkPool>()) {}

Result<std::unique_ptr<ZmqPsCommunicator>> ZmqPsCommunicator::Create(
    Host& host, const CommunicatorSettings& settings) noexcept {
  try {
    std::unique_ptr<ZmqPsCommunicator> communicator(new ZmqPsCommunicator(host, settings));
    if (communicator->ranks_.world_size > 1 || communicator->ranks_.servers > 0 ||
        communicator->update_) {
      ENGINE_RETURN_IF_ERROR(communicator->Connect(settings));
    }
    return communicator;
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot start zmq_ps: %s", error.what());
  }
}

Status ZmqPsCommunicator::Connect(const CommunicatorSettings& settings) {
  Rendezvous rendezvous(host_, RendezvousSettingsOf(settings, ranks_));
  ServerSettings server = ServerSettingsOf(settings, host_);
  ENGINE_RETURN_IF_ERROR(rendezvous.Meet(&server));
  if (rendezvous.hosts_server()) {
    ENGINE_ASSIGN_OR_RETURN(server_, Server::Start(std::move(server)));
    ENGINE_RETURN_IF_ERROR(rendezvous.Publish(*server_));
  }
  WorkerSettings worker{.worker = static_cast<uint32_t>(ranks_.rank),
                        .world_size = static_cast<uint32_t>(ranks_.world_size),
                        .incarnation = static_cast<uint32_t>(ranks_.incarnation),
                        .slice_bytes = settings.slice_bytes,
                        .ordered = ordered_,
                        .io_threads = settings.io_threads,
                        .buffer_bytes = settings.buffer_bytes,
                        .resend_ms = settings.resend_ms,
                        .lost_after_ms = settings.lost_after_ms,
                        .heartbeat = settings.heartbeat,
                        .on_failure =
                            [this](const Status& farewell) {
                              if (server_) server_->Fail(farewell);
                            },
                        .pool = pool_};
  ENGINE_RETURN_IF_ERROR(rendezvous.FindServers(&worker));
  ENGINE_ASSIGN_OR_RETURN(worker_, Worker::Connect(std::move(worker), rendezvous.deadline()));
  if (!update_) return {};
  parameters_ = std::make_unique<ServedParameters>(*update_, settings.slice_bytes, *worker_, pool_,
                                                   [this](Optimizer& optimizer) {
                                                     if (server_) server_->Serve(optimizer);
                                                   });
  return {};
}

void* ZmqPsCommunicator::Query(std::string_view id) noexcept {
  if (id == kLinkCostId) return &link_cost_;
  if (id != kParameterClientId || !parameters_) return nullptr;
  return static_cast<ParameterClient*>(parameters_.get());
}

ZmqPsCommunicator::~ZmqPsCommunicator() {
  if (worker_) ReportBalance();
  worker_.reset();
  if (server_) server_->Stop(kDrainMs);
  server_.reset();  // its threads may use the optimizer until then
}

void ZmqPsCommunicator::ReportBalance() noexcept {
  try {
    const std::vector<uint64_t> bytes = worker_->PushedBytes();
    const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
    if (all == 0) return;
    const uint64_t most = *std::max_element(bytes.begin(), bytes.end());
    char line[160];
    std::snprintf(
        line, sizeof(line),
        "pushed %.1f MB to %zu servers; the one with most got %.2f times its share",
        static_cast<double>(all) / 1e6, bytes.size(),
        static_cast<double>(most) * static_cast<double>(bytes.size()) / static_cast<double>(all));
    host_.Log(LogLevel::kDebug, line);
  } catch (const std::exception&) {
    // No memory for a report.
  }
}

CommunicatorTraits ZmqPsCommunicator::traits() const noexcept {
  return {.kinds = parameters_ ? kAllKinds | kServedKinds : kAllKinds,
          .dtypes = kAllDTypes,
          .ordered = ordered_ ? 1u : 0u,
          .max_in_flight = 0,
          .measures_only = 0};
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
                       Describe(transfer).c_str());
}

Status ZmqPsCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  if (worker_ && worker_->failed()) return worker_->reason();
  if (!worker_) {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_.ok()) return abort_reason_;
  }
  ENGINE_RETURN_IF_ERROR(Check(transfer));
  PooledWork* const work = pool_->Take(transfer);
  if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
  if (Bit(transfer.kind) & kServedKinds) parameters_->Prepare(work);
  if (!worker_) {
    work->MarkStarted();
    RunAlone(transfer);
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
  if (worker_) {
    worker_->Abort(reason, Status::Error(StatusCode::kPeerLost, "rank %d was stopped: %s",
                                         ranks_.rank, reason.message())
                               .WithRank(ranks_.rank));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (abort_reason_.ok()) abort_reason_ = reason;
}

}  // namespace engine::zmq_ps
