// Ranks as threads of one process.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/memory_store.h"

namespace engine::test {

// What `run` gives for each rank, on threads that share a store.
template <typename Outcome>
std::vector<Outcome> RunRanks(int size, const std::function<Outcome(int rank, base::Store&)>& run) {
  auto table = std::make_shared<test::MemoryTable>();
  std::deque<base::AbortSignal> aborts(static_cast<size_t>(size));
  std::deque<test::MemoryStore> stores;
  for (base::AbortSignal& abort : aborts) stores.emplace_back(table, abort);
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    threads.emplace_back([&, rank, r] { outcomes[r] = run(rank, stores[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace engine::test
