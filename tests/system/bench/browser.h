// A real browser, without a window.
#pragma once

#include <optional>
#include <string>

namespace engine::testing {

// The path of Chromium or Chrome, nothing if none is installed.
std::optional<std::string> FindBrowser();

// The page at `path` as the browser has understood it. `scratch`: a folder for its profile. Empty,
// and the test fails, when it does not answer in time.
std::string RenderedPage(const std::string& browser, const std::string& path,
                         const std::string& scratch);

// A port of this host that accepts connections and answers none.
class Listener {
 public:
  Listener();
  ~Listener();
  int port() const { return port_; }
  bool WasCalled() const;  // whether anybody has connected

 private:
  int fd_ = -1, port_ = 0;
};

}  // namespace engine::testing
