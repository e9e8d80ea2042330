#include "bench/link/program.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>

#include "bench/process/process_group.h"
#include "kit/unique_fd.h"

namespace engine::bench {
namespace {

// A file in memory, so that a program may write as much as it likes before anybody reads.
class MemoryFile {
 public:
  bool valid() const { return fd_.get() >= 0; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }
  bool Write(const std::string& text) const {
    return write(fd_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }
  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }

 private:
  const kit::UniqueFd fd_{memfd_create("engine_bench", MFD_CLOEXEC)};
};

}  // namespace

std::string FindProgram(const std::string& name) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    const std::string path = folder + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

Result<std::string> RunProgram(const std::vector<std::string>& arguments,
                               const std::string& input) {
  const MemoryFile in, out, errors;
  if (!in.valid() || !out.valid() || !errors.valid() || !in.Write(input)) {
    return Status::Error(StatusCode::kResourceExhausted, "cannot make a file in memory: %s",
                         strerror(errno));
  }
  std::string command;
  for (const std::string& argument : arguments) command += (command.empty() ? "" : " ") + argument;
  const auto ends = RunTogether({{.arguments = arguments,
                                  .environment = {{"PATH", "/usr/sbin:/usr/bin:/sbin:/bin"}},
                                  .output = out.path(),
                                  .errors = errors.path(),
                                  .input = in.path()}},
                                std::chrono::seconds(10), /*signals=*/nullptr);
  if (!ends.ok()) return ends.status().WithContext("%s", command.c_str());
  if (ends->front().exit_code == 0) return out.Read();
  std::string said = errors.Read();
  said.erase(said.find_last_not_of(" \n") + 1);
  return Status::Error(StatusCode::kInternal, "%s failed: %s", command.c_str(),
                       said.empty() ? "it says nothing" : said.c_str());
}

}  // namespace engine::bench
