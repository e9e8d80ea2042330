// The page of a comparison, in a browser.
#include <filesystem>

#include "tests/system/bench/browser.h"
#include "tests/system/cli/cli_test.h"

namespace engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BenchPage : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    browser_ = FindBrowser();
    if (!browser_) GTEST_SKIP() << "no browser is installed: apt-get install chromium";
    std::filesystem::create_directory(folder_ / "scratch");
    const Outcome outcome =
        Run({"bench", "train", "run.pbtxt", "-n", "2", "--b", "priority_sched", "--steps", "6",
             "--warmup", "1", "--blocks", "1", "--quiet", "--out", "out"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    page_ = Read("out/report.html");
  }

  std::string Render(const std::string& page) const {
    return RenderedPage(*browser_, folder_.Write("page.html", page), folder_ / "scratch");
  }
  // The page with an image from this host put into it.
  static std::string WithImage(std::string page, int port) {
    const std::string image = "<img src=\"http://127.0.0.1:" + std::to_string(port) + "/x.png\">";
    return page.insert(page.find("</main>"), image);
  }

  std::optional<std::string> browser_;
  std::string page_;
};

size_t Count(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST_F(BenchPage, ShowsConclusionAndPlots) {
  const std::string dom = Render(page_);
  EXPECT_THAT(dom, AllOf(HasSubstr("id=\"conclusion\""), HasSubstr("not separable")));
  for (const char* id : {"steps", "ratio", "order", "losses"}) {
    const size_t begin = dom.find("<figure id=\"" + std::string(id) + "\">");
    ASSERT_NE(begin, std::string::npos) << id;
    const std::string figure = dom.substr(begin, dom.find("</figure>", begin) - begin);
    EXPECT_EQ(Count(figure, "<svg"), 2u) << id;  // for a wide and for a narrow page
    EXPECT_EQ(Count(figure, "</svg>"), 2u) << id;
    EXPECT_GT(Count(figure, "<text"), 4u) << id;
  }
  // Six steps of two runs of each side, on both pages; and four runs.
  EXPECT_GT(Count(dom, "class=\"a dot\""), 10u);
  EXPECT_EQ(Count(dom, "class=\"b point\""), 4u);
  EXPECT_EQ(Count(dom, "class=\"a curve\""), 4u);
  // An unclosed or unknown tag would be repaired or moved by the browser.
  for (const char* tag : {"<section", "<figure", "<table", "<svg", "<circle", "<line", "<rect",
                          "<text", "<title", "<tr"}) {
    EXPECT_EQ(Count(dom, tag), Count(page_, tag)) << tag;
  }
}

TEST_F(BenchPage, MayNotReachTheNetwork) {
  const Listener forbidden, allowed;
  Render(WithImage(page_, forbidden.port()));
  EXPECT_FALSE(forbidden.WasCalled());
  // Without its policy it would: so it is the policy that holds.
  std::string open = page_;
  const size_t policy = open.find("<meta http-equiv");
  ASSERT_NE(policy, std::string::npos);
  open.erase(policy, open.find('>', policy) + 1 - policy);
  Render(WithImage(open, allowed.port()));
  EXPECT_TRUE(allowed.WasCalled());
}

}  // namespace
}  // namespace engine::testing
