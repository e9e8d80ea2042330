#include "app/run/serve.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "app/launch/member.h"
#include "core/train/agree.h"
#include "core/train/rank_plugins.h"
#include "engine/ext/parameter_server.h"

namespace engine {
namespace {

constexpr const char* kConfigKey = "run/configuration";
constexpr const char* kPlugins = "plugins of servers";
// For a server to notice by itself that all ranks have left.
constexpr std::chrono::milliseconds kNoticeTime{2000};
constexpr int64_t kLookMs = 500;

// Ends a server that waits for a rank which is lost and will not come again: only the launcher
// knows that.
class EndWithRanks {
 public:
  EndWithRanks(RankContext& server, Communicator& communicator)
      : server_(server), communicator_(communicator), thread_([this] { Watch(); }) {}
  ~EndWithRanks() { Stop(); }

  // Whether it was this that ended the server.
  bool Stop() {
    {
      const std::lock_guard lock(mutex_);
      served_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    return ended_;
  }

 private:
  void Watch() {
    while (!Served(std::chrono::milliseconds(0)) && !server_.abort.raised()) {
      // A short deadline, to see that the server has ended in another way.
      if (!server_.store.Get(kRanksLeftKey, kLookMs).ok()) continue;
      if (Served(kNoticeTime)) return;
      ended_ = true;
      communicator_.Abort(Status::Error(StatusCode::kAborted, "all ranks have left"));
      return;
    }
  }
  bool Served(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, wait, [this] { return served_; });
  }

  RankContext& server_;
  Communicator& communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool served_ = false;             // guarded by mutex_
  std::atomic<bool> ended_{false};  // set before the Abort that it explains
  std::thread thread_;              // last: uses what is above
};

// The second communicator of a run, if ranks make one: served by a thread, on which everything of
// it happens.
class ReplicaService {
 public:
  ReplicaService(const PluginSelection& plugins, RankContext& server, Communicator& first)
      : plugins_(plugins), server_(server), first_(first), thread_([this] { Run(); }) {}
  ~ReplicaService() { (void)Stop(Status::Error(StatusCode::kAborted, "the server was given up")); }

  // When the first communicator has ended, with `first`: waits for the second one. Why that failed.
  Status Stop(const Status& first) {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      if (!first.ok() && second_ != nullptr) second_->Abort(first);
    }
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  void Run() {
    status_ = Serve();
    if (!status_.ok()) first_.Abort(status_);
  }
  Status Serve() {
    if (!Wanted()) return {};
    ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<RankPlugins> plugins,
                            RankPlugins::CreateForServer(plugins_, server_));
    Communicator& communicator = *plugins->set().communicator;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return {};
      second_ = &communicator;
    }
    auto* const parameters = static_cast<ParameterServer*>(communicator.Query(kParameterServerId));
    Status status = parameters->Serve(*plugins->set().optimizer);
    const std::lock_guard lock(mutex_);
    second_ = nullptr;
    return status;
  }
  bool Wanted() {
    while (!Stopped() && !server_.abort.raised()) {
      // A short deadline, to see that the server has ended.
      const auto said = server_.store.Get(kReplicasKey, kLookMs);
      if (said.ok()) return *said == "second";
    }
    return false;
  }
  bool Stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  const PluginSelection& plugins_;
  RankContext& server_;
  Communicator& first_;
  Status status_;  // of the thread, until it is joined
  std::mutex mutex_;
  bool stopped_ = false;            // guarded by mutex_
  Communicator* second_ = nullptr;  // guarded by mutex_; while it serves
  std::thread thread_;              // last: uses what is above
};

}  // namespace

Status DescribeRunToServers(const Config& config, RankContext& rank) {
  ENGINE_RETURN_IF_ERROR(PublishAsRankZero(rank, kPlugins, PluginVersions(config.plugins())));
  return rank.store.Set(kConfigKey, config.Print(false));
}

Result<Config> ConfigOfRun(RankContext& server, const std::vector<std::string>& plugin_folders,
                           int64_t timeout_ms) {
  ENGINE_ASSIGN_OR_RETURN(std::string text, server.store.Get(kConfigKey, timeout_ms));
  return Config::Load({.text = std::move(text),
                       .origin = "configuration of the run",
                       .plugin_folders = plugin_folders});
}

Status ServeParameters(const Config& config, RankContext& server) {
  ENGINE_RETURN_IF_ERROR(CheckSameAsRankZero(server, kPlugins, PluginVersions(config.plugins()),
                                             config.run().communication.rendezvous_timeout_ms));
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<RankPlugins> plugins,
                          RankPlugins::CreateForServer(config.plugins(), server));
  Communicator& communicator = *plugins->set().communicator;
  auto* const parameters = static_cast<ParameterServer*>(communicator.Query(kParameterServerId));
  if (parameters == nullptr) {
    return Status::Error(StatusCode::kConfig,
                         "communicator '%s' has no servers: drop --servers or choose one that has, "
                         "such as zmq_ps",
                         config.plugins().communicator.entry.name.c_str());
  }
  ReplicaService replicas(config.plugins(), server, communicator);
  EndWithRanks end(server, communicator);
  const Status status = parameters->Serve(*plugins->set().optimizer);
  const bool ranks_left = end.Stop();
  Status second = replicas.Stop(status);
  if (ranks_left && !server.abort.raised()) return {};
  return second.ok() ? status : second;
}

}  // namespace engine
