#include "tests/system/bench/browser.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "tests/support/engine_process.h"
#include "tests/support/temp_folder.h"

namespace engine::testing {

std::optional<std::string> FindBrowser() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      const std::string file = folder + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return std::nullopt;
}

std::string RenderedPage(const std::string& browser, const std::string& path,
                         const std::string& scratch) {
  const std::string output = scratch + "/dom.html";
  std::vector<std::string> words = {browser,
                                    "--headless",
                                    "--no-sandbox",
                                    "--disable-gpu",
                                    "--disable-quic",
                                    "--no-first-run",
                                    "--disable-background-networking",
                                    "--disable-component-update",
                                    "--disable-sync",
                                    "--timeout=3000",
                                    "--user-data-dir=" + scratch + "/profile",
                                    "--dump-dom",
                                    "file://" + path};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int null = open("/dev/null", O_WRONLY);
    dup2(out, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  Await(
      "the browser", [&] { return waitpid(pid, &status, WNOHANG) == pid; },
      std::chrono::seconds(60));
  kill(-pid, SIGKILL);
  return ReadWhole(output);
}

Listener::Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd_, any, size), 0);
  EXPECT_EQ(listen(fd_, 8), 0);
  EXPECT_EQ(getsockname(fd_, any, &size), 0);
  port_ = ntohs(address.sin_port);
}

Listener::~Listener() {
  close(fd_);
}

bool Listener::WasCalled() const {
  pollfd entry{fd_, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace engine::testing
