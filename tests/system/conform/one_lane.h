// A communicator of one lane, made of the kit, around a transport:
//
//   class T : public kit::Transport
//     void Stop();      makes Run return, after a failure or an Abort. [any-thread]
//     void End();       ... before it is deleted
//     void Farewell();  tells the others that nothing more comes from here. [any-thread]
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kit/communicator.h"
#include "kit/lanes.h"

namespace engine {

template <typename T>
class OneLane final : public CommunicatorBase {
 public:
  // `make` gives a unique_ptr<T> for a Progress; it is not called in a world of one.
  template <typename Make>
  OneLane(Host& host, const char* name, const std::string& prefix, uint32_t dtypes,
          const Make& make)
      : ranks_(host.rank_info()),
        name_(name),
        dtypes_(dtypes),
        progress_(host, prefix),
        failure_(host, prefix,
                 [this](const Status&, bool) {
                   if (transport_ != nullptr) transport_->Stop();
                 }),
        lanes_(name, MakeLane(make), {}, failure_, progress_) {}
  ~OneLane() override {
    failure_.Abort(Status::Error(StatusCode::kAborted, "the communicator was destroyed"));
    if (transport_ != nullptr) transport_->End();
  }

  CommunicatorTraits traits() const noexcept override {
    return {.kinds = kit::kCollectives, .dtypes = dtypes_, .max_in_flight = lanes_.count()};
  }
  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::CheckTransfer(transfer, ranks_, name_, TransferKind::kBarrier));
    return lanes_.Submit(transfer, out);
  }
  void Abort(const Status& reason) noexcept override {
    if (transport_ != nullptr && !failure_.raised()) transport_->Farewell();
    failure_.Abort(reason);
  }

 private:
  template <typename Make>
  kit::Transports MakeLane(const Make& make) {
    kit::Transports lanes;
    if (ranks_.world_size == 1) return lanes;
    std::unique_ptr<T> transport = make(progress_);
    transport_ = transport.get();
    lanes.push_back(std::move(transport));
    return lanes;
  }

  const RankInfo ranks_;
  const char* const name_;
  const uint32_t dtypes_;
  kit::Progress progress_;
  T* transport_ = nullptr;  // of the lane, if there is one
  kit::Failure failure_;
  kit::Lanes lanes_;  // ends first
};

}  // namespace engine
