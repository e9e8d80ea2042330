#include "tools/conform/child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "tools/conform/contract.h"

namespace engine::conform {
namespace {

// Of this process, set once by RunSuite.
int report_fd = -1;
std::optional<Subject> under_test;

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
  void OnTestEnd(const testing::TestInfo&) override { Report({"end"}); }
};

}  // namespace

// One write, so that lines of several threads and forks do not mix.
void Report(const std::vector<std::string>& event) {
  using Json = nlohmann::json;
  const std::string line = Json(event).dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  if (report_fd >= 0 && write(report_fd, line.data(), line.size()) < 0) _exit(1);  // nobody reads
}

const Subject& UnderTest() {
  return *under_test;
}

const PluginUnderTest* Subject::Other(PluginKind kind) const {
  const auto found = std::ranges::find_if(
      others, [kind](const PluginUnderTest& other) { return other.file().kind == kind; });
  return found == others.end() ? nullptr : &*found;
}

Seeds::Seeds(uint32_t count) : first_(UnderTest().seed), count_(count) {}

void RunSuite(Subject subject, const Suite& suite, const std::string& filter, int fd) {
  report_fd = fd;
  under_test = std::move(subject);
  const plugins::PluginFile& file = UnderTest().plugin.file();
  if (const auto loaded = file.load(file); !loaded.ok()) {
    return Report({"refused", loaded.status().message()});
  }
  if (suite.absent != nullptr) {
    if (const std::string why = suite.absent(); !why.empty()) return Report({"absent", why});
  }
  testing::InitGoogleTest();
  GTEST_FLAG_SET(filter, filter);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(std::make_unique<Reporter>().release());
  [[maybe_unused]] const int failed = RUN_ALL_TESTS();  // what failed was reported
  Report({"done"});
}

}  // namespace engine::conform
