// A sweep as text.
#pragma once

#include <string>

#include "bench/collectives/sweep.h"
#include "bench/machine/machine.h"

namespace engine::bench {

// "4 B", "64 KiB", "64 MiB"
std::string SizeText(int64_t bytes);

// What stands above and below the rows.
struct SweepConditions {
  int ranks = 1;
  std::string source;  // of the ranks: "-n", "torchrun"
  Machine machine;
};

// For people: in-place figures, which is how training uses a communicator, and how B compares.
std::string TableHead(const SweepRequest& request, const SweepConditions& conditions);
std::string TableRow(const SweepRow& row);
std::string TableFoot(const SweepRequest& request, const SweepResult& result);

// The layout of nccl-tests' all_reduce_perf, line by line, so that its readers read this too.
// `contender`: whose figures; "time" is the median.
std::string NcclHead(const SweepRequest& request, const SweepConditions& conditions,
                     size_t contender);
std::string NcclRow(const SweepRequest& request, const SweepRow& row, size_t contender);
std::string NcclFoot(const SweepResult& result, size_t contender);

// One line per size, placement and contender, below a line of names.
std::string SweepCsv(const SweepRequest& request, const SweepConditions& conditions,
                     const SweepResult& result);
std::string SweepJson(const SweepRequest& request, const SweepConditions& conditions,
                      const SweepResult& result);

}  // namespace engine::bench
