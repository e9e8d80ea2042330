// The page of a comparison, in a browser.
#include <boost/asio.hpp>

#include "bench/link/program.h"
#include "tests/support/matchers.h"
#include "tests/system/cli/cli_test.h"

namespace engine::test {
namespace {

using boost::asio::ip::tcp;

// A port of this host that accepts connections and answers none.
class Listener {
 public:
  Listener() { acceptor_.non_blocking(true); }
  int port() const { return acceptor_.local_endpoint().port(); }
  bool WasCalled() {
    boost::system::error_code error;
    acceptor_.accept(error);
    return !error;
  }

 private:
  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, {boost::asio::ip::address_v4::loopback(), 0}};
};

class BenchPage : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    for (const char* name : {"google-chrome", "chromium-browser", "chromium"}) {
      const std::string found = bench::FindProgram(name);
      if (!found.empty()) browser_ = found;
    }
    if (browser_.empty()) GTEST_SKIP() << "no browser is installed: apt-get install chromium";
    Output(
        Run("bench train run.pbtxt -n 2 --b priority_sched --steps 6 --warmup 1 --blocks 1 "
            "--quiet --out out"));
    page_ = Read("out/report.html");
  }

  // The page as a real browser, without a window, has understood it.
  std::string Render(const std::string& page) const {
    ProbeProcess process(Words(browser_ +
                               " --headless --no-sandbox --disable-gpu --disable-quic "
                               "--no-first-run --disable-background-networking "
                               "--disable-component-update --disable-sync --timeout=3000 "
                               "--dump-dom --user-data-dir=" +
                               (folder_ / "profile") + " file://" +
                               folder_.Write("page.html", page)));
    const int group = process.pid();
    EXPECT_EQ(process.Wait(), 0) << process.output();
    kill(-group, SIGKILL);  // helpers that it has left
    return process.output();
  }
  // The page with an image from this host put into it.
  static std::string WithImage(std::string page, int port) {
    const std::string image = "<img src=\"http://127.0.0.1:" + std::to_string(port) + "/x.png\">";
    return page.insert(page.find("</main>"), image);
  }

  std::string browser_;
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
  Listener forbidden, allowed;
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
}  // namespace engine::test
