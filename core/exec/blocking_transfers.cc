// A number is given under the lock of the runner, and the transfer is submitted without it. Nobody
// else submits meanwhile: no step is under way (StepRunner::Number checks it), and a rank that
// follows tickets holds back those of later transfers until this one has its number.
#include "core/exec/blocking_transfers.h"

#include <utility>

#include "core/exec/step_runner.h"
#include "engine/ext/grouped_transfers.h"

namespace engine::exec {

Status BlockingTransfers::Run(Transfer transfer, int64_t timeout_ms) {
  transfer.timeout_ms = timeout_ms;
  runner_.Number(&transfer);
  Work* work = nullptr;
  Status submitted = communicator_.Submit(transfer, &work);
  return Await(std::move(submitted), work, timeout_ms);
}

Status BlockingTransfers::RunTogether(std::span<Transfer> transfers) {
  auto* const groups = static_cast<GroupedTransfers*>(communicator_.Query(kGroupedTransfersId));
  if (groups == nullptr || transfers.size() < 2) {
    for (const Transfer& transfer : transfers) ENGINE_RETURN_IF_ERROR(Run(transfer));
    return {};
  }
  for (Transfer& transfer : transfers) {
    transfer.timeout_ms = timeout_ms_;
    runner_.Number(&transfer);
  }
  Work* work = nullptr;
  Status submitted = groups->SubmitGroup(transfers, &work);
  return Await(std::move(submitted), work, timeout_ms_);
}

Status BlockingTransfers::Await(Status status, Work* work, int64_t timeout_ms) {
  if (status.ok()) {
    status = work->WaitHost(timeout_ms + kGraceMs);
    work->Release();
  }
  return status.ok() ? status : runner_.GiveUp(std::move(status));
}

}  // namespace engine::exec
