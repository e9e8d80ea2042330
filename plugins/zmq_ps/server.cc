#include "server.h"

#include <exception>

#include "server_loop.h"

namespace engine::zmq_ps {

Server::Server(ServerSettings settings)
    : settings_(std::move(settings)), context_(settings_.io_threads) {
  if (!settings_.keys.secret_key.empty()) {
    gate_ = std::make_unique<Gate>(context_, settings_.worker_keys, settings_.renewed_keys);
  }
  loop_ = std::make_unique<ServerLoop>(settings_, context_);
  endpoint_ = loop_->endpoint();
  thread_ = std::thread([this] { loop_->Run(); });
}

Result<std::unique_ptr<Server>> Server::Start(ServerSettings settings) noexcept {
  const bool encrypted = !settings.keys.secret_key.empty();
  if (!encrypted && !IsLoopback(settings.endpoint)) {
    return Status::Error(StatusCode::kConfig,
                         "a parameter server at %s would talk in plain text with other hosts: give "
                         "it keys, or an address of loopback",
                         settings.endpoint.c_str());
  }
  if (encrypted && settings.worker_keys.size() != settings.workers) {
    return Status::Error(StatusCode::kConfig,
                         "%zu public keys for %u workers of a parameter server: it needs one each",
                         settings.worker_keys.size(), settings.workers);
  }
  const std::string endpoint = settings.endpoint;
  try {
    return std::unique_ptr<Server>(new Server(std::move(settings)));
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted,
                         "cannot start a parameter server at %s: %s", endpoint.c_str(),
                         error.what());
  }
}

Server::~Server() {
  Stop(0);
}

ServerTraffic Server::traffic() const noexcept {
  return loop_->traffic();
}

void Server::Serve(Optimizer& optimizer) noexcept {
  loop_->Serve(optimizer);
}

Status Server::WaitForEnd() noexcept {
  return loop_->WaitForEnd();
}

void Server::Fail(const Status& reason) noexcept {
  loop_->Fail(reason);
}

void Server::Stop(int64_t drain_ms) noexcept {
  if (!thread_.joinable()) return;
  loop_->Stop(drain_ms);
  thread_.join();
}

}  // namespace engine::zmq_ps
