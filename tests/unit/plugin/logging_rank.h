// A rank of a world of two, in this process, whose log a test reads.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/rank_context.h"
#include "tests/support/memory_store.h"

namespace engine::plugin {

struct LoggingRank {
  std::string log;  // what plugins say, a line each, without their names
  base::AbortSignal abort;
  test::MemoryStore store{std::make_shared<test::MemoryTable>(), abort};
  std::atomic<int> stop{0};
  base::RankContext context{.info = {.rank = 1, .world_size = 2, .local_world_size = 1},
                            .store = store,
                            .abort = abort,
                            .stop_requested = stop,
                            .log = [this](LogLevel, std::string_view text) {
                              log.append(text.substr(text.find(": ") + 2)).append("\n");
                            }};
};

}  // namespace engine::plugin
