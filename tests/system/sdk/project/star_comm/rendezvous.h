// How the ranks find each other.
#pragma once

#include <vector>

#include "connection.h"
#include "engine/host.h"
#include "engine/options.h"
#include "engine/status.h"

namespace star_comm {

// A ray waits so much longer than rank 0, which says which rank was late.
constexpr int64_t kGraceMs = 500;

// Tells the rays on which `connections` end that rank 0 gives up.
void TellFailure(std::vector<Connection>& connections, const engine::Status& failure) noexcept;

// On rank 0 the connections of ranks 1, 2, ...; on the others that of rank 0. Fails on all ranks
// when one does not come in time. Throws std::bad_alloc.
engine::Result<std::vector<Connection>> Meet(engine::Host& host, const engine::Options& options);

}  // namespace star_comm
