// Transfers that are submitted by the callback of an earlier one, as the engine does.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/contract.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/communicator.h";

constexpr int kLength = 100;
constexpr auto kDeadline = std::chrono::seconds(90);

// One rank's transfers 0 .. kLength-1. Transfer n is submitted as soon as n - in_flight is done, by
// whoever learns of that, and after n - 1: so all ranks submit in one order.
class Chain {
 public:
  Chain(int rank, int world_size, int in_flight) : in_flight_(in_flight) {
    for (const int64_t count : {1, 5000, 60000, 0, 777, 20000}) {
      buffers_.emplace_back(TransferCase{.count = count}, rank, world_size);
    }
    links_.resize(kLength);
    for (int n = 0; n < kLength; ++n) links_[static_cast<size_t>(n)] = {this, n, nullptr, false};
  }

  void Start(Communicator& communicator, bool moves_data) {
    const std::lock_guard lock(mutex_);
    communicator_ = &communicator;
    moves_data_ = moves_data;
    Continue();
  }

  bool Finish() {
    std::unique_lock lock(mutex_);
    return finished_.wait_for(lock, kDeadline, [this] { return done_ == kLength || failed_; }) &&
           !failed_;
  }

 private:
  struct Link {
    Chain* chain = nullptr;
    int number = 0;
    Work* work = nullptr;
    bool done = false;
  };

  TransferBuffers& BuffersOf(int number) {
    return buffers_[static_cast<size_t>(number) % buffers_.size()];
  }

  // With mutex_ held, perhaps by callers of this function: where transfers end at once, OnDone
  // calls back from in here.
  void Continue() {
    while (next_ < kLength && !failed_) {
      if (next_ >= in_flight_ && !links_[static_cast<size_t>(next_ - in_flight_)].done) return;
      Link& link = links_[static_cast<size_t>(next_++)];
      TransferBuffers& buffers = BuffersOf(link.number);
      buffers.Fill();
      const auto number = static_cast<uint64_t>(link.number);
      const Status status = communicator_->Submit(
          buffers.MakeTransfer(number, number % buffers_.size() + 1), &link.work);
      if (!status.ok()) return Fail(status);
      link.work->OnDone([](void* context) { OnDone(*static_cast<Link*>(context)); }, &link);
    }
  }

  static void OnDone(Link& link) {
    Chain& chain = *link.chain;
    const std::lock_guard lock(chain.mutex_);
    EXPECT_NE(link.work->state(), WorkState::kPending);
    const Status status = link.work->WaitHost(0);
    if (status.ok() && chain.moves_data_) {
      EXPECT_TRUE(chain.BuffersOf(link.number).Check());
    }
    link.work->Release();
    link.done = true;
    if (!status.ok()) return chain.Fail(status);
    if (++chain.done_ == kLength) chain.finished_.notify_all();
    chain.Continue();
  }

  void Fail(const Status& status) {
    if (!failed_) ADD_FAILURE() << "transfer " << next_ - 1 << ": " << status.message();
    failed_ = true;
    finished_.notify_all();
  }

  const int in_flight_;
  Communicator* communicator_ = nullptr;
  bool moves_data_ = false;
  std::recursive_mutex mutex_;  // guards the rest
  std::condition_variable_any finished_;
  std::deque<TransferBuffers> buffers_;
  std::vector<Link> links_;
  int next_ = 0;
  int done_ = 0;
  bool failed_ = false;
};

void RunChains(int world_size, int in_flight) {
  std::deque<Chain> chains;  // outlive the threads that call back
  for (int rank = 0; rank < world_size; ++rank) chains.emplace_back(rank, world_size, in_flight);
  World world(world_size);
  const bool moves_data = world.moves_data();
  RunRanks(world_size, [&](int rank) {
    Chain& chain = chains[static_cast<size_t>(rank)];
    chain.Start(world.rank(rank), moves_data);
    EXPECT_TRUE(chain.Finish()) << "rank " << rank;
  });
}

// One chain, two, and as many as there are buffers.
TEST(Communicator, EachTransferIsSubmittedByTheCallbackOfAnEarlierOne) {
  MUST("A callback of OnDone may submit the next transfer and release its Work.");
  for (const int in_flight : {1, 2, 6}) {
    for (const int size : Sizes(1, 3)) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(in_flight) + " in flight");
      RunChains(size, in_flight);
    }
  }
}

}  // namespace
}  // namespace engine::conform
