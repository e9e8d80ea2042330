#include "bench/bench.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <string.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/link/linked_ranks.h"
#include "bench/profile/profile.h"

namespace engine::bench {
namespace {

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return Status::Error(StatusCode::kStorage, "cannot write %s: %s", path.c_str(), strerror(errno));
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::Create(const std::string& parent) {
  std::string path = parent + "/engine_bench.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return Status::Error(StatusCode::kStorage, "cannot make a folder in %s: %s", parent.c_str(),
                         strerror(errno));
  }
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Status UseProfile(const ProfileChoice& choice, const std::string& folder, TrainRequest* request) {
  const ProfileOptions options{.time_scale = choice.time_scale,
                               .bytes_scale = choice.bytes_scale,
                               .jitter = choice.jitter,
                               .steps = request->warmup + request->steps};
  ENGINE_ASSIGN_OR_RETURN(const std::string text, ProfileConfig(choice.name, options));
  ENGINE_ASSIGN_OR_RETURN(const ProfileFacts facts, GetProfileFacts(choice.name, options));
  request->config_file = folder + "/" + choice.name + ".pbtxt";
  request->config_name =
      fmt::format("profile {}, times x {:g}, bytes x {:g}, jitter {:g}", choice.name,
                  choice.time_scale, choice.bytes_scale, choice.jitter);
  request->forward_seconds = facts.forward_seconds;
  request->backward_seconds = facts.backward_seconds;
  request->gradient_bytes = facts.gradient_bytes;
  return WriteFile(request->config_file, text);
}

Status WriteTrainFiles(const TrainResult& result, const std::string& folder) {
  ENGINE_RETURN_IF_ERROR(WriteFile(folder + "/report.html", TrainHtml(result)));
  ENGINE_RETURN_IF_ERROR(WriteFile(folder + "/results.csv", TrainCsv(result)));
  return WriteFile(folder + "/results.json", TrainJson(result));
}

Result<LinkedOutcome> RunOnLinkedHosts(const std::vector<std::string>& arguments, int ranks,
                                       const std::string& rate, const std::string& congestion,
                                       const Program& program, int64_t timeout_ms) {
  const launch::StopSignals signals;
  LinkOptions options;
  options.hosts = ranks;
  options.rate = rate;
  options.congestion = congestion;
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<LinkedHosts> hosts, LinkedHosts::Create(options));
  Command command{.arguments = arguments, .environment = program.environment};
  command.arguments.insert(command.arguments.begin(), program.binary);
  const std::vector<Command> commands =
      RanksOnHosts(command, *hosts, ranks, program.folder + "/output.");
  ENGINE_ASSIGN_OR_RETURN(const std::vector<ProcessEnd> ends,
                          RunTogether(commands, std::chrono::milliseconds(timeout_ms), &signals));
  const size_t failed = FirstFailure(ends);
  const size_t shown = failed < ends.size() ? failed : 0;
  return LinkedOutcome{ends[shown].exit_code, ReadFile(commands[shown].output)};
}

}  // namespace engine::bench
