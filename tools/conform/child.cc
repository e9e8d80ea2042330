#include "tools/conform/child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/conform/contract.h"

namespace engine::conform {
namespace {

// Of this process, set once by RunSuites.
int report_fd = -1;

constexpr int64_t kOutcomeMs = 120000;  // for another rank to end the test, too

// What failed in a test, on this rank of a launcher's job.
std::string FailuresOf(const testing::TestInfo& test) {
  std::string text;
  for (int i = 0; i < test.result()->total_part_count(); ++i) {
    const testing::TestPartResult& part = test.result()->GetTestPartResult(i);
    if (part.failed()) text += text.empty() ? part.message() : std::string("; ") + part.message();
  }
  return text;
}

// Ranks of a launcher's job meet at the end of each test; rank 0 reports what the others have found.
void ShareOutcome(base::RankContext& rank, const testing::TestInfo& test) {
  const std::string prefix =
      std::string("conform/end/") + test.test_suite_name() + "." + test.name() + "/";
  (void)rank.store.Set(prefix + std::to_string(rank.info.rank), FailuresOf(test));
  for (int other = 0; other < rank.info.world_size; ++other) {
    const auto found = rank.store.Get(prefix + std::to_string(other), kOutcomeMs);
    const std::string what = found.ok() ? *found : found.status().message();
    if (other != rank.info.rank && !what.empty()) {
      Report({"failed", "rank " + std::to_string(other) + ": " + what});
    }
  }
}

class Reporter final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override { Report({"test", test.name()}); }
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed() && !part.skipped()) return;
    std::string text = part.message();
    for (const char* title : {"Failed\n", "Skipped\n"}) {  // of a message without values
      if (text.starts_with(title)) text.erase(0, std::string(title).size());
    }
    Report({part.failed() ? "failed" : "skipped", text});
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (UnderTest().launched != nullptr) ShareOutcome(*UnderTest().launched, test);
    Report({"end"});
  }
};

}  // namespace

// One write, so that lines of several threads and forks do not mix.
void Report(const std::vector<std::string>& event) {
  using Json = nlohmann::json;
  const std::string line = Json(event).dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  if (report_fd >= 0 && write(report_fd, line.data(), line.size()) < 0) _exit(1);  // nobody reads
}

Seeds::Seeds(uint32_t count) : first_(UnderTest().seed), count_(count) {}

void RunSuites(Subject subject, const std::vector<SuiteRun>& runs, int fd) {
  report_fd = fd;
  SetSubject(std::move(subject));
  const plugins::PluginFile& file = UnderTest().plugin.file();
  if (const auto loaded = file.load(file); !loaded.ok()) {
    return Report({"refused", loaded.status().message()});
  }
  bool initialised = false;
  for (const auto& [suite, filter] : runs) {
    const std::string why = suite->absent != nullptr ? suite->absent() : "";
    if (!why.empty()) {
      Report({"absent", why});
      continue;
    }
    if (!std::exchange(initialised, true)) {
      testing::InitGoogleTest();
      testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(std::make_unique<Reporter>().release());
    }
    GTEST_FLAG_SET(filter, filter);
    [[maybe_unused]] const int failed = RUN_ALL_TESTS();  // what failed was reported
    Report({"done"});
  }
}

}  // namespace engine::conform
