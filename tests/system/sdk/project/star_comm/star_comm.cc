// star_comm: every rank is connected to rank 0, which adds up in rank order and sends the sum back.
// One transfer at a time; for few ranks and small models.
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "connection.h"
#include "engine/plugin.h"
#include "message.h"
#include "rendezvous.h"
#include "star_work.h"

namespace star_comm {
namespace {

using namespace engine;  // NOLINT: this file implements its interfaces

void Reduce(Reduction reduction, float* target, const float* source, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    switch (reduction) {
      case Reduction::kSum:
        target[i] += source[i];
        break;
      case Reduction::kMax:
        target[i] = std::max(target[i], source[i]);
        break;
      case Reduction::kMin:
        target[i] = std::min(target[i], source[i]);
        break;
    }
  }
}

uint64_t SizeBytes(const Transfer& transfer) noexcept {
  if (transfer.kind == TransferKind::kBarrier) return 0;
  return static_cast<uint64_t>(transfer.count) * sizeof(float);
}

// What `rank` sends to rank 0 in front of its part of `t`.
Header HeaderOf(const Transfer& t, int32_t rank) noexcept {
  const bool gives = t.kind == TransferKind::kAllReduce || t.root == rank;
  return {.sequence = t.sequence,
          .key = t.key,
          .size_bytes = gives ? SizeBytes(t) : 0,
          .kind = t.kind,
          .reduction = t.reduction,
          .root = t.root,
          .unit = t.unit};
}

// The dtype is always float32.
void Describe(const Header& header, char (&text)[128]) noexcept {
  std::snprintf(text, sizeof(text), "%s %llu of %llu bytes (unit %lld, key %llu)",
                Name(header.kind), static_cast<unsigned long long>(header.sequence),
                static_cast<unsigned long long>(header.size_bytes),
                header.unit == Transfer().unit ? -1LL : static_cast<long long>(header.unit),
                static_cast<unsigned long long>(header.key));
}

Status CheckSame(const Header& mine, const Header& theirs, int32_t rank) noexcept {
  if (theirs.sequence == mine.sequence && theirs.key == mine.key &&
      theirs.size_bytes == mine.size_bytes && theirs.kind == mine.kind &&
      theirs.reduction == mine.reduction && theirs.root == mine.root) {
    return {};
  }
  char their_text[128], my_text[128];
  Describe(theirs, their_text);
  Describe(mine, my_text);
  return Status::Error(StatusCode::kInvalidArgument,
                       "rank %d is at %s, this rank at %s: all ranks must submit the same "
                       "transfers in the same order",
                       rank, their_text, my_text)
      .WithRank(rank);
}

class StarCommunicator final : public Communicator {
 public:
  StarCommunicator(const RankInfo& self, std::vector<Connection> connections)
      : self_(self),
        connections_(std::move(connections)),
        pool_(std::make_shared<WorkPool>()),
        thread_([this] { Serve(); }) {
    pthread_setname_np(thread_.native_handle(), "star_comm");
  }

  ~StarCommunicator() override {
    Abort(Status::Error(StatusCode::kAborted, "star_comm is shut down"));
    thread_.join();
  }

  CommunicatorTraits traits() const noexcept override {
    CommunicatorTraits traits;
    traits.kinds =
        Bit(TransferKind::kAllReduce) | Bit(TransferKind::kBroadcast) | Bit(TransferKind::kBarrier);
    traits.dtypes = Bit(DType::kFloat32);
    traits.max_in_flight = 1;
    return traits;
  }

  Status Submit(const Transfer& transfer, Work** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(Check(transfer));
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    StarWork* work = WorkPool::Take(pool_, transfer);
    if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
    (front_ ? back_->next : front_) = work;
    back_ = work;
    wake_.notify_one();
    *out = work;
    return {};
  }

  void Abort(const Status& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = reason;
    for (Connection& connection : connections_) connection.Shutdown();
    wake_.notify_one();
  }

 private:
  Status Check(const Transfer& t) const noexcept {
    if ((traits().kinds & Bit(t.kind)) == 0 || t.dtype != DType::kFloat32) {
      return Status::Error(StatusCode::kUnsupported, "star_comm offers no %s of %s", Name(t.kind),
                           Name(t.dtype));
    }
    if (t.count >= 0 && t.timeout_ms > 0 && t.root >= 0 && t.root < self_.world_size) return {};
    return Status::Error(
        StatusCode::kInvalidArgument, "%s with count %lld, timeout %lld ms, root %d", Name(t.kind),
        static_cast<long long>(t.count), static_cast<long long>(t.timeout_ms), t.root);
  }

  // The thread: one transfer after the other, until something fails.
  void Serve() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return front_ || !failure_.ok(); });
      if (!failure_.ok()) break;
      StarWork* work = front_;
      lock.unlock();
      const Status status =
          Run(*work).WithContext("%s %llu", Name(work->transfer().kind),
                                 static_cast<unsigned long long>(work->transfer().sequence));
      if (!status.ok()) Abort(status);
      lock.lock();
      if (!failure_.ok()) break;
      front_ = work->next;
      lock.unlock();
      work->Finish({});
      lock.lock();
    }
    // Submit refuses by now, so this is all there will ever be.
    StarWork* work = std::exchange(front_, nullptr);
    const Status failure = failure_;
    lock.unlock();
    while (work) std::exchange(work, work->next)->Finish(failure);
  }

  Status Run(StarWork& work) noexcept {
    if (self_.world_size == 1) {
      work.Begin();
      return KeepMine(work.transfer());
    }
    if (self_.rank != 0) return RunAsRay(work);
    Status status = Collect(work);
    if (status.ok()) status = Answer(work);
    if (!status.ok()) TellFailure(connections_, status);
    return status;
  }

  static Status KeepMine(const Transfer& t) noexcept {
    if (SizeBytes(t) > 0 && t.send != t.recv) std::memcpy(t.recv, t.send, SizeBytes(t));
    return {};
  }

  Status RunAsRay(StarWork& work) noexcept {
    const Transfer& t = work.transfer();
    const Header mine = HeaderOf(t, self_.rank);
    Connection& centre = connections_[0];
    work.Begin();
    Status sent = centre.Send(&mine, sizeof(mine), work.deadline());
    if (sent.ok()) sent = centre.Send(t.send, mine.size_bytes, work.deadline());
    // Also when that failed: before rank 0 closes a connection it says why.
    Header answer;
    const Deadline deadline = work.deadline() + std::chrono::milliseconds(kGraceMs);
    const Status received = centre.Receive(&answer, sizeof(answer), deadline);
    if (!received.ok()) return sent.ok() ? received : sent;
    if (answer.failure != StatusCode::kOk) {
      return Status::Error(answer.failure, "rank 0 gave up because of rank %d", answer.culprit)
          .WithRank(answer.culprit);
    }
    Header expected = mine;
    expected.size_bytes = SizeBytes(t);
    ENGINE_RETURN_IF_ERROR(CheckSame(expected, answer, 0));
    return centre.Receive(t.recv, answer.size_bytes, deadline);
  }

  // Rank 0: the result of all ranks is then in `recv`.
  Status Collect(const StarWork& work) noexcept {
    const Transfer& t = work.transfer();
    if (HeaderOf(t, 0).size_bytes > 0) ENGINE_RETURN_IF_ERROR(KeepMine(t));
    for (int32_t rank = 1; rank < self_.world_size; ++rank) {
      Connection& ray = connections_[static_cast<size_t>(rank - 1)];
      const Header expected = HeaderOf(t, rank);
      Header header;
      ENGINE_RETURN_IF_ERROR(ray.Receive(&header, sizeof(header), work.deadline()));
      ENGINE_RETURN_IF_ERROR(CheckSame(expected, header, rank));
      if (t.kind == TransferKind::kAllReduce) {
        ENGINE_RETURN_IF_ERROR(Grow(header.size_bytes));
        ENGINE_RETURN_IF_ERROR(ray.Receive(scratch_.data(), header.size_bytes, work.deadline()));
        Reduce(t.reduction, static_cast<float*>(t.recv), scratch_.data(), t.count);
      } else {
        ENGINE_RETURN_IF_ERROR(ray.Receive(t.recv, header.size_bytes, work.deadline()));
      }
    }
    return {};
  }

  Status Answer(StarWork& work) noexcept {
    const Transfer& t = work.transfer();
    Header header = HeaderOf(t, 0);
    header.size_bytes = SizeBytes(t);
    work.Begin();
    for (Connection& ray : connections_) {
      ENGINE_RETURN_IF_ERROR(ray.Send(&header, sizeof(header), work.deadline()));
      ENGINE_RETURN_IF_ERROR(ray.Send(t.recv, header.size_bytes, work.deadline()));
    }
    return {};
  }

  Status Grow(uint64_t size_bytes) noexcept {
    try {
      if (scratch_.size() * sizeof(float) < size_bytes) scratch_.resize(size_bytes / sizeof(float));
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "no memory to receive %llu bytes",
                           static_cast<unsigned long long>(size_bytes));
    }
    return {};
  }

  const RankInfo self_;
  std::vector<Connection> connections_;  // see Meet
  std::vector<float> scratch_;           // of the thread
  const std::shared_ptr<WorkPool> pool_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_:
  StarWork* front_ = nullptr;  // the queue; its first work is under way
  StarWork* back_ = nullptr;   // valid while front_ is not null
  Status failure_;             // the first
  std::thread thread_;         // last, so that it starts when the rest is there
};

Status Create(Host& host, const Options& options, Object** out) noexcept {
  try {
    ENGINE_ASSIGN_OR_RETURN(std::vector<Connection> connections, Meet(host, options));
    *out = new StarCommunicator(host.rank_info(), std::move(connections));
    return {};
  } catch (const std::exception& error) {
    return Status::Error(StatusCode::kResourceExhausted, "star_comm cannot start: %s",
                         error.what());
  }
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "star_comm",
                    .version = "1.0.0",
                    .kind = PluginKind::kCommunicator,
                    .doc = "adds up on rank 0, over TCP; for few ranks and small models",
                    .create = Create},
                   NoOps(),
                   std::array{OptionSpec{.name = "address",
                                         .type = OptionType::kString,
                                         .default_value = "127.0.0.1",
                                         .doc = "numeric IPv4 address at which rank 0 listens"},
                              OptionSpec{.name = "rendezvous_timeout_ms",
                                         .type = OptionType::kInt,
                                         .default_value = "30000",
                                         .min = 1,
                                         .max = 3600000,
                                         .doc = "for all ranks to connect"}});

}  // namespace star_comm
