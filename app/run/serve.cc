#include "app/run/serve.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "app/launch/agree.h"
#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "core/plugin/rank_plugins.h"
#include "engine/ext/parameter_server.h"

namespace engine::run {
namespace {

constexpr const char* kConfigKey = "run/configuration";
constexpr const char* kPlugins = "plugins of servers";

// Ends a server that waits for a rank which is lost and will not come again: only the launcher
// knows that.
class RanksLeftWatch {
 public:
  RanksLeftWatch(base::RankContext& server, Communicator& communicator)
      : thread_([this, &server, &communicator](const std::stop_token& stop) {
          // A short deadline, to see that the server has ended in another way.
          while (!server.store.Get(launch::kRanksLeftKey, launch::kPingMs).ok()) {
            if (stop.stop_requested() || server.abort.raised()) return;
          }
          const std::chrono::milliseconds grace(launch::kServerEndMs);
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, stop, grace, [&] { return stop.stop_requested(); })) return;
          ended_ = true;
          communicator.Abort(Status::Error(StatusCode::kAborted, "all ranks have left"));
        }) {}

  // Whether it was this that ended the server.
  bool Stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::atomic<bool> ended_{false};  // set before the Abort that it explains
  std::jthread thread_;             // last: uses what is above
};

}  // namespace

void SetDeadlines(const train::CommunicationOptions& options, base::RankContext& member) {
  member.info.rendezvous_timeout_ms = options.rendezvous_timeout_ms;
  member.info.transfer_timeout_ms = options.timeout_ms;
  if (member.watch != nullptr) member.watch->SetTimeout(options.timeout_ms);
}

Status DescribeRunToServers(const config::Config& config, base::RankContext& rank) {
  ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(rank, kPlugins, config.plugins().versions));
  return rank.store.Set(kConfigKey, config.Print(false));
}

Result<config::Config> ConfigOfRun(base::RankContext& server,
                                   const std::vector<std::string>& plugin_folders,
                                   int64_t timeout_ms) {
  ENGINE_ASSIGN_OR_RETURN(std::string text, server.store.Get(kConfigKey, timeout_ms));
  return config::Config::Load({.text = std::move(text),
                               .origin = "configuration of the run",
                               .is_data = true,
                               .plugin_folders = plugin_folders});
}

Status ServeParameters(const config::Config& config, base::RankContext& server) {
  SetDeadlines(config.run().communication, server);
  ENGINE_RETURN_IF_ERROR(launch::CheckSameOnAllRanks(server, kPlugins, config.plugins().versions));
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<plugin::RankPlugins> plugins,
                          plugin::RankPlugins::Create(config.plugins(), server));
  Communicator& communicator = *plugins->set().communicator;
  auto* const parameters = Query<ParameterServer>(communicator);
  if (parameters == nullptr) {
    return Status::Error(StatusCode::kConfig,
                         "communicator '%s' has no servers: drop --servers or choose one that has, "
                         "such as zmq_ps",
                         config.plugins().communicator.entry.name.c_str());
  }
  RanksLeftWatch watch(server, communicator);
  Status status = plugin::Answer(parameters->Serve(*plugins->set().optimizer))
                      .WithContext("%s", config.plugins().communicator.entry.Title().c_str());
  if (watch.Stop() && !server.abort.raised()) return {};
  // Without the launcher's word the ranks may as well be out of reach.
  if (status.ok()) {
    status = server.store.Get(launch::kRanksLeftKey, launch::kRanksLeftTimeoutMs).status();
  }
  if (!status.ok()) server.Report(status);
  return status;
}

}  // namespace engine::run
