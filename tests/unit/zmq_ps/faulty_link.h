// A network that loses, repeats and reorders messages.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <random>

#include "clock.h"
#include "link.h"

namespace engine::zmq_ps {

struct FaultCounts {
  std::atomic<uint64_t> sent{0}, dropped{0}, repeated{0}, reordered{0};
};

// Of the messages sent, `share` each are lost, arrive twice, or arrive after the next one.
class FaultyLink final : public Link {
 public:
  FaultyLink(std::unique_ptr<Link> inner, uint32_t seed, double share, FaultCounts* counts)
      : inner_(std::move(inner)), random_(seed), share_(share), counts_(counts) {}

  bool Writable() override { return inner_->Writable(); }
  void* socket() override { return inner_->socket(); }

  SendResult Send(Message& message) override {
    ++counts_->sent;
    const double dice = std::uniform_real_distribution<>(0, 1)(random_);
    if (dice < share_) {
      ++counts_->dropped;
      message = {.peer = message.peer};
      return SendResult::kSent;
    }
    if (dice < 2 * share_ && !held_) {
      ++counts_->reordered;
      held_.emplace(std::move(message));
      held_since_ = Clock::now();
      message = {.peer = held_->peer};
      return SendResult::kSent;
    }
    Message twin{.peer = message.peer};
    const bool repeats = dice < 3 * share_;
    if (repeats) {
      twin.header.copy(message.header);
      twin.body.copy(message.body);
      twin.rows.copy(message.rows);
    }
    const SendResult result = inner_->Send(message);
    if (result == SendResult::kSent && repeats && inner_->Send(twin) == SendResult::kSent) {
      ++counts_->repeated;
    }
    if (result == SendResult::kSent) LetGo();
    return result;
  }

  bool Receive(Message* out) override {
    if (held_ && Clock::now() > held_since_ + std::chrono::milliseconds(5)) LetGo();
    return inner_->Receive(out);
  }

 private:
  // A message that does not fit then is lost.
  void LetGo() {
    if (held_) inner_->Send(*held_);
    held_.reset();
  }

  const std::unique_ptr<Link> inner_;
  std::mt19937 random_;
  const double share_;
  FaultCounts* const counts_;
  std::optional<Message> held_;
  Clock::time_point held_since_{};
};

}  // namespace engine::zmq_ps
