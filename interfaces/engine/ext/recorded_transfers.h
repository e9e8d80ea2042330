// Communicators whose transfers can be recorded with the work of a device and done again with it.
#pragma once

#include "engine/abi/interface.h"

namespace engine {

// Query<RecordedTransfers> of a Communicator is not null: a transfer that is submitted while
// Transfer::stream is recorded (Accelerator::BeginRecording) is part of the recording, and so is
// what waits for it by Work::WaitStream. Every launch of the recording carries it out, on all ranks
// that have recorded the same transfers in the same order. Its Work is done at once for the host,
// which hears of a failure by a later transfer.
ENGINE_INTERFACE(RecordedTransfers, Interface, "engine.recorded_transfers.draft/1");
class RecordedTransfersBase : public Implements<RecordedTransfers> {};

}  // namespace engine
