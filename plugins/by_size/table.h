// Which communicator a transfer is for.
//
//   table      := [row {';' row}]           the first row that fits counts
//   row        := operation size plugin     separated by spaces
//   operation  := 'all_reduce' | 'reduce_scatter' | 'all_gather' | 'broadcast' | 'barrier' | 'any'
//   size       := number ['KiB' | 'MiB' | 'GiB'] | 'any'      transfers of up to so many bytes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::by_size {

struct Row {
  bool Fits(TransferKind kind) const noexcept { return (kinds & Bit(kind)) != 0; }

  std::string text;    // of the table
  uint32_t kinds = 0;  // Bit(TransferKind) | ...
  uint64_t up_to = UINT64_MAX;
  std::string plugin;
};

// The bytes that rows count: those of all ranks for a reduce-scatter and an all-gather, as engine bench
// collectives and nccl-tests have them.
uint64_t SizeOfAll(const Transfer& transfer, int32_t world_size) noexcept;

// kConfig quotes the row that is none.
Result<std::vector<Row>> ParseTable(std::string_view table);

// kConfig names the first row of `table` that differs from that of `other`, which rank `rank` has.
Status CompareTables(std::string_view table, std::string_view other, int32_t rank);

}  // namespace engine::by_size
