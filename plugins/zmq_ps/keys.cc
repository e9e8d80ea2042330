#include "keys.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>
#include <zmq_addon.hpp>

#include "kit/thread.h"

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

Authenticator::Authenticator(::zmq::context_t& context, std::vector<std::string> client_keys,
                             KeyLookup lookup)
    : context_(context),
      client_keys_(std::move(client_keys)),
      lookup_(std::move(lookup)),
      socket_(context, ZMQ_REP) {
  socket_.set(::zmq::sockopt::linger, 0);
  socket_.bind("inproc://zeromq.zap.01");
  thread_ = kit::StartThread("zmq_ps_zap", [this] { Loop(); });
}

Authenticator::~Authenticator() {
  context_.shutdown();
  thread_.join();
}

// The only thread that touches socket_ and client_keys_ from here on, because a lookup may wait for
// the store. Shutting the context down makes the receive throw, which is how the loop ends; the
// socket must be closed before the context goes.
void Authenticator::Loop() noexcept {
  try {
    while (true) Answer();
  } catch (const ::zmq::error_t&) {
    socket_.close();  // the context is shut down
  }
}

int Authenticator::Find(const std::string& key) const noexcept {
  const auto found = std::find(client_keys_.begin(), client_keys_.end(), key);
  if (key.empty() || found == client_keys_.end()) return -1;
  return static_cast<int>(found - client_keys_.begin());
}

// The lookup asks the store of the run, so it is bounded: at most once a second for all
// connections, however many try. "300" makes libzmq close the connection and the client try again.
const char* Authenticator::Check(const std::string& key, int* user) {
  *user = Find(key);
  if (*user < 0 && lookup_) {
    if (kit::Clock::now() < next_lookup_) return "300";  // come again
    next_lookup_ = kit::Clock::now() + kLookupInterval;
    for (uint32_t i = 0; i < client_keys_.size(); ++i) {
      const std::string renewed = lookup_(i);
      if (!renewed.empty()) client_keys_[i] = renewed;  // the former one is not let in again
    }
    *user = Find(key);
  }
  return *user >= 0 ? "200" : "400";
}

// request := version id domain address identity "CURVE" key | ... "PLAIN" name key
// reply   := version id status text user metadata
void Authenticator::Answer() {
  std::vector<::zmq::message_t> frames;
  (void)::zmq::recv_multipart(socket_, std::back_inserter(frames));
  const std::string_view mechanism = frames.size() > 5 ? frames[5].to_string_view() : "";
  std::string key;
  if (mechanism == "CURVE" && frames.size() == 7) key = ToZ85(frames[6]);
  if (mechanism == "PLAIN" && frames.size() == 8) key = frames[7].to_string();
  int user = -1;
  const char* const status = Check(key, &user);
  const std::string id = frames.size() > 1 ? frames[1].to_string() : "";
  const std::string name = user >= 0 ? std::to_string(user) : "";
  const ::zmq::const_buffer reply[] = {::zmq::str_buffer("1.0"), ::zmq::buffer(id),
                                       ::zmq::buffer(status, 3), ::zmq::const_buffer(),
                                       ::zmq::buffer(name),      ::zmq::const_buffer()};
  (void)::zmq::send_multipart(socket_, reply);
}

}  // namespace engine::zmq_ps
