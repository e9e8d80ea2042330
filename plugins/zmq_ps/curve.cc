#include "curve.h"

#include <pthread.h>

#include <cerrno>
#include <cstring>

#include "thread_setup.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kZ85KeyBytes = 40;
constexpr size_t kRawKeyBytes = 32;
constexpr auto kLookupInterval = std::chrono::seconds(1);

std::string ToZ85(const ::zmq::message_t& raw) {
  if (raw.size() != kRawKeyBytes) return {};
  char text[kZ85KeyBytes + 1] = {};
  return zmq_z85_encode(text, static_cast<const uint8_t*>(raw.data()), raw.size()) ? text : "";
}

}  // namespace

Result<KeyPair> KeyPair::Make() {
  char public_key[kZ85KeyBytes + 1] = {}, secret_key[kZ85KeyBytes + 1] = {};
  if (zmq_curve_keypair(public_key, secret_key) != 0) {
    return Status::Error(StatusCode::kUnsupported,
                         "cannot make keys: %s; libzmq is built without CURVE",
                         zmq_strerror(zmq_errno()));
  }
  return KeyPair{public_key, secret_key};
}

Gate::Gate(::zmq::context_t& context, std::vector<std::string> client_keys, KeyLookup lookup)
    : context_(context),
      client_keys_(std::move(client_keys)),
      lookup_(std::move(lookup)),
      socket_(context, ZMQ_REP) {
  socket_.set(::zmq::sockopt::linger, 0);
  socket_.bind("inproc://zeromq.zap.01");
  thread_ = std::thread([this] { Loop(); });
}

Gate::~Gate() {
  context_.shutdown();
  thread_.join();
}

void Gate::Loop() noexcept {
  PrepareThread("zmq_ps_gate");
  try {
    while (true) Answer();
  } catch (const ::zmq::error_t&) {
    socket_.close();  // the context is shut down
  }
}

int Gate::Find(const std::string& key) const noexcept {
  for (size_t i = 0; i < client_keys_.size(); ++i) {
    if (!key.empty() && client_keys_[i] == key) return static_cast<int>(i);
  }
  return -1;
}

const char* Gate::Judge(const std::string& key, int* user) {
  *user = Find(key);
  if (*user < 0 && lookup_) {
    if (Clock::now() < next_lookup_) return "300";
    next_lookup_ = Clock::now() + kLookupInterval;
    for (uint32_t i = 0; i < client_keys_.size(); ++i) {
      const std::string renewed = lookup_(i);
      if (!renewed.empty()) client_keys_[i] = renewed;  // the former one is not let in again
    }
    *user = Find(key);
  }
  return *user >= 0 ? "200" : "400";
}

// request := version id domain address identity mechanism credentials...
// reply   := version id status text user metadata
void Gate::Answer() {
  std::vector<::zmq::message_t> frames;
  do {
    frames.emplace_back();
    (void)socket_.recv(frames.back(), ::zmq::recv_flags::none);
  } while (frames.back().more());
  int user = -1;
  const char* status = "400";
  if (frames.size() == 7 && frames[5].to_string_view() == "CURVE") {
    status = Judge(ToZ85(frames[6]), &user);
  }
  const std::string id = frames.size() > 1 ? frames[1].to_string() : "";
  const std::string reply[] = {
      "1.0", id, status, user >= 0 ? "" : "unknown key", user >= 0 ? std::to_string(user) : "", ""};
  for (size_t i = 0; i < std::size(reply); ++i) {
    const bool last = i + 1 == std::size(reply);
    (void)socket_.send(::zmq::buffer(reply[i]),
                       last ? ::zmq::send_flags::none : ::zmq::send_flags::sndmore);
  }
}

}  // namespace engine::zmq_ps
