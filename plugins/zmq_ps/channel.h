// The connection of a rank to one server: requests go out by priority, answers come in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/host.h"
#include "flow.h"
#include "keys.h"
#include "socket_link.h"
#include "wire.h"
#include "work.h"

namespace engine::zmq_ps {

struct ServerAddress {
  std::string endpoint;
  std::string public_key;  // empty: plain text
  int32_t member = -1;     // the rank that hosts it, or ServerId of one of its own
};

// "server 1 at tcp://...", "the parameter server of rank 1 at tcp://..."
std::string Describe(const ServerAddress& address);

struct WorkerSettings {
  uint32_t worker = 0;  // the own rank
  uint32_t world_size = 1;
  uint32_t incarnation = 0;
  KeyPair keys;
  std::vector<ServerAddress> servers;
  ConnectionSettings connection;
  uint64_t min_slice_bytes = 64 << 10;
  // Called once, on the worker's thread, with what others should know of the first failure.
  std::function<void(const Status& farewell)> on_failure;
  ProgressGate* gate = nullptr;  // of the works that are submitted; may be null
};

// Of the thread that makes the worker's progress, unless stated otherwise. Tells `worker` what
// happens.
class Channel {
 public:
  // Throws zmq::error_t.
  Channel(const ServerAddress& address, const WorkerSettings& settings, ::zmq::context_t& context,
          std::shared_ptr<WakeUp> wake_up, Worker& worker);

  const ServerAddress& address() const noexcept { return address_; }
  bool welcomed() const noexcept { return welcomed_; }
  void* socket() { return link_->socket(); }
  void* monitor() { return link_->monitor().socket(); }

  // Sends a request by its priority. It keeps its work alive until then.
  void Queue(Request* request);

  void HandleEvents();
  void Receive();
  void Send(bool all_acknowledgements);
  // Whether there is something to receive or to send at once.
  bool IsReady();
  bool has_acknowledgements() const noexcept { return !acks_.empty(); }
  void CheckConnection(Clock::time_point now);
  // Asks who is missing in the first request of `work` that is not done, if one is of this server.
  void Probe(const TransferWork* work);
  // Whether nothing has come from the server since Probe.
  bool is_silent() const noexcept { return is_silent_; }
  // Sends what can be sent and a farewell, drops what is queued, and closes the sockets.
  void Close(const Status& farewell);

 private:
  Header HeaderOf(MessageKind kind) const;
  bool HasRoom() { return borrowed_.HasRoom(settings_.connection.flow.ahead()); }
  void Handle(Message& message);
  void HandleAnswer(const Header& header, const ::zmq::message_t& body);
  void Acknowledge(uint64_t request, uint64_t bytes);
  bool AcksAreDue() const;
  bool SendControl(bool all_acknowledgements);
  bool SendControl(const Header& header, ::zmq::message_t body);
  bool SendRequest(Request& request);
  void Attach(Request& request, Message* message);
  ::zmq::message_t Borrow(Request& request, const void* data, size_t bytes);
  Status Error(StatusCode code, const char* what) const;

  const ServerAddress address_;
  const WorkerSettings& settings_;
  Worker& worker_;
  std::unique_ptr<DealerLink> link_;
  SendQueue<Request*> requests_;
  BorrowedBuffers borrowed_;
  std::unordered_map<uint64_t, Request*> unanswered_;
  uint64_t next_request_ = 1;
  std::vector<uint64_t> acks_;   // of answers that the server may forget, not sent yet
  uint64_t acked_bytes_ = 0;     // of them
  Clock::time_point first_ack_;  // when the first came, if there is one
  std::optional<Header> probe_due_;
  bool is_silent_ = false;
  bool hello_due_ = false;
  bool welcomed_ = false;
  std::optional<Clock::time_point> down_since_;
};

}  // namespace engine::zmq_ps
