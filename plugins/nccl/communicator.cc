#include "communicator.h"

#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "kit/communicator.h"
#include "split.h"

namespace engine::nccl {
namespace {

constexpr int64_t kTokenMs = 10000;
constexpr int64_t kCloseMs = 2000;

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(Host& host,
                                                                   const Settings& settings) {
  ENGINE_ASSIGN_OR_RETURN(const int32_t gpu, ChooseGpu(host));
  ENGINE_RETURN_IF_ERROR(UseGpu(gpu));
  ENGINE_ASSIGN_OR_RETURN(std::shared_ptr<const Library> library, Library::Open(settings.library));
  if (settings.symmetric && library->functions().CommWindowRegister == nullptr) {
    return Status::Error(StatusCode::kPlugin,
                         "the option symmetric of nccl needs NCCL 2.27 or later, and '%s' is "
                         "%s: install a newer one, or set symmetric to false",
                         library->name().c_str(), VersionText(library->version()).c_str());
  }
  ENGINE_ASSIGN_OR_RETURN(GpuStream stream, GpuStream::Create());
  ENGINE_ASSIGN_OR_RETURN(Token token, MakeToken(stream));
  Rendezvous rendezvous(host, std::move(library), settings);
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Comm> comm, rendezvous.Meet());
  host.Log(LogLevel::kDebug, std::string("NCCL ")
                                 .append(VersionText(comm->library().version()).c_str())
                                 .append(" of ")
                                 .append(settings.library)
                                 .append(", GPU ")
                                 .append(std::to_string(gpu)));
  return std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(host, settings, gpu, std::move(stream), std::move(token),
                           std::move(comm), rendezvous.members()));
}

NcclCommunicator::NcclCommunicator(Host& host, const Settings& settings, int32_t gpu,
                                   GpuStream stream, Token token, std::unique_ptr<Comm> comm,
                                   kit::Members members)
    : host_(host),
      settings_(settings),
      members_(std::move(members)),
      gpu_(gpu),
      stream_(std::move(stream)),
      token_(std::move(token)),
      comm_(std::move(comm)),
      arenas_(host, gpu, *comm_, settings.symmetric),
      pipeline_(std::make_unique<Pipeline>(gpu, *comm_, stream_, token_.get(), failure_,
                                           LivenessCheck(host, members_, failure_))) {}

// The watchdog uses all of the rest, so it goes first; arenas are known to NCCL until Close.
NcclCommunicator::~NcclCommunicator() {
  pipeline_.reset();
  (void)UseGpu(gpu_);
  arenas_.Clear();
  Close();
  // Freeing waits for the GPU, which may be kept by a stream of the user's.
  if (!stream_.Drain(kCloseMs).ok()) (void)token_.release();
}

void NcclCommunicator::FreeGpuMemory::operator()(void* memory) const noexcept {
  (void)cudaFree(memory);
}

Result<NcclCommunicator::Token> NcclCommunicator::MakeToken(const GpuStream& stream) noexcept {
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(ToStatus(cudaMalloc(&memory, sizeof(int32_t)), "memory for barriers"));
  Token token(memory);
  ENGINE_RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(memory, 0, sizeof(int32_t), stream.get()),
                                  "zeroing the memory for barriers"));
  ENGINE_RETURN_IF_ERROR(stream.Drain(kTokenMs));
  return token;
}

// Nothing is pending. Peace first; a communicator that does not end in time is aborted.
void NcclCommunicator::Close() noexcept {
  const kit::Clock::time_point deadline = kit::DeadlineIn(kCloseMs);
  bool begun = false;
  const auto step = [&]() -> Result<bool> {
    if (begun) {
      comm_->Destroy();
      return true;
    }
    begun = true;
    ENGINE_RETURN_IF_ERROR(comm_->Finish());
    return false;
  };
  const Status status = comm_->Drive("the end of the communicator", step, [&]() -> Status {
    if (kit::Clock::now() < deadline) return {};
    return Status::Error(StatusCode::kTimeout, "the communicator did not end");
  });
  if (status.ok()) return;
  const std::lock_guard lock(comm_->mutex());
  comm_->Abort();
}

void* NcclCommunicator::Query(std::string_view id) noexcept {
  const Functions& call = comm_->library().functions();
  if (id == RecordedTransfers::kId) return static_cast<RecordedTransfers*>(this);
  if (id == SharedMemory::kId) return static_cast<SharedMemory*>(&arenas_);
  if (id == SubGroups::kId && call.CommSplit != nullptr) return static_cast<SubGroups*>(this);
  const bool groups = call.GroupStart != nullptr && call.GroupEnd != nullptr;
  if (id == GroupedTransfers::kId && groups) return static_cast<GroupedTransfers*>(this);
  return nullptr;
}

CommunicatorTraits NcclCommunicator::traits() const noexcept {
  return {.kinds = kit::kCollectives,
          .dtypes = kit::kAllDTypes,
          .ordered = 1,
          .max_in_flight = members_.size() > 1 ? 1u : 0u,
          .no_op = 0,
          .device_memory = 1};
}

Status NcclCommunicator::Submit(const Transfer& transfer, Work** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  ENGINE_RETURN_IF_ERROR(Check(transfer));
  return pipeline_->Submit(transfer, out);
}

Status NcclCommunicator::Check(const Transfer& transfer) const noexcept {
  const RankInfo ranks{.rank = members_.rank, .world_size = members_.size()};
  return kit::CheckTransfer(transfer, ranks, "nccl", TransferKind::kBarrier, true);
}

// One stream is waited for by the whole group: its work has one ready event.
Status NcclCommunicator::SubmitGroup(Array<const Transfer> transfers, Work** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  if (transfers.empty()) {
    return Status::Error(StatusCode::kInvalidArgument, "a group of no transfers");
  }
  const Stream* stream = nullptr;
  for (const Transfer& transfer : transfers) {
    ENGINE_RETURN_IF_ERROR(Check(transfer));
    if (transfer.kind == TransferKind::kBarrier) {
      return Status::Error(StatusCode::kInvalidArgument, "a barrier in a group of transfers");
    }
    if (transfer.stream == nullptr) continue;
    if (stream != nullptr && transfer.stream != stream) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "a group of transfers that wait for different streams");
    }
    stream = transfer.stream;
  }
  return transfers.size() == 1 ? pipeline_->Submit(transfers.front(), out)
                               : pipeline_->SubmitGroup(transfers, out);
}

Status NcclCommunicator::Split(int32_t color, int32_t key, Communicator** out) noexcept {
  if (failure_.raised()) return failure_.reason();
  if (color < kNoColor) {
    return Status::Error(StatusCode::kInvalidArgument, "a split with colour %d", color);
  }
  Status status;
  try {
    auto made = MakeGroup(color, key);
    if (made.ok()) {
      *out = made->release();
      return {};
    }
    status = made.status();
  } catch (const std::exception& error) {
    status = Status::Error(StatusCode::kResourceExhausted, "cannot split: %s", error.what());
  }
  // NCCL may be in the middle of it, and other ranks wait for this one.
  (void)failure_.Fail(status);
  pipeline_->Ring();
  return status;
}

// What can fail on this rank alone comes first.
Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::MakeGroup(int32_t color, int32_t key) {
  ENGINE_RETURN_IF_ERROR(UseGpu(gpu_));
  ENGINE_ASSIGN_OR_RETURN(GpuStream stream, GpuStream::Create());
  ENGINE_ASSIGN_OR_RETURN(Token token, MakeToken(stream));
  nccl::Split split(host_, members_, splits_++, settings_, failure_);
  ENGINE_ASSIGN_OR_RETURN(kit::Members group, split.Meet(color, key));
  ENGINE_ASSIGN_OR_RETURN(std::unique_ptr<Comm> comm, split.Begin(*comm_, *pipeline_, color, key));
  if (comm == nullptr) return std::unique_ptr<NcclCommunicator>();
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(host_, settings_, gpu_,
                                                                std::move(stream), std::move(token),
                                                                std::move(comm), std::move(group)));
}

void NcclCommunicator::Abort(const Status& reason) noexcept {
  failure_.Abort(reason);
  pipeline_->Ring();
}

}  // namespace engine::nccl
