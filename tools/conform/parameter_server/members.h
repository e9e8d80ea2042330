// The members of one run, driven by a test: mostly from one thread, because nothing but the setup
// calls blocks.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/parameter_server/served_buckets.h"
#include "tools/conform/parameter_server/served_fixture.h"

namespace engine::conform {

constexpr int64_t kTimeoutMs = 20000;  // of whatever should succeed

// What returns no Status is what a test cannot go on without (Must).
class Members {
 public:
  Members(const ServedCase& served, int ranks, const OptimizerChoice& optimizer = {});
  // All leave; fails the test when a server does not notice.
  ~Members();

  // Nothing where rank 0 has no ParameterClient.
  std::optional<UpdateMode> mode();
  int ranks() const { return static_cast<int>(ranks_.size()); }
  ParameterTraits traits() { return client(0).traits(); }
  Communicator& communicator(int rank);
  ParameterClient& client(int rank) { return *Query<ParameterClient>(communicator(rank)); }
  Communicator& server(int index) { return *servers_[static_cast<size_t>(index)].communicator; }

  Status Register(int rank, const std::vector<TestBucket>& buckets);
  // Every rank does: at the same time, because a server inside of a rank has its optimizer from
  // there.
  void RegisterAll(const std::vector<TestBucket>& buckets);
  // ... and rank 0 stores their values and the others load them. Returns the buckets.
  std::vector<TestBucket> Start(std::vector<TestBucket> buckets);

  // Destroys what the rank has.
  void Leave(int rank) { ranks_[static_cast<size_t>(rank)].communicator.reset(); }
  // Another process takes its place: it has to Register.
  void Rejoin(int rank);

  // What Serve returned; kTimeout when it does not return in time.
  Status Served(int index);

  // Begins a step for one rank.
  Status Begin(int rank, uint64_t step, float learning_rate = 0.125f, float weight = 1);
  Work* SubmitPush(int rank, const TestBucket& bucket, const std::vector<float>& gradient);
  Work* SubmitPull(int rank, const TestBucket& bucket, std::vector<float>* value,
                   int64_t timeout_ms = kTimeoutMs);
  // Submits and waits; the error of either.
  Status Push(int rank, const TestBucket& bucket, const std::vector<float>& gradient,
              const std::vector<int32_t>* rows = nullptr);
  Status Pull(int rank, const TestBucket& bucket, std::vector<float>* value,
              const std::vector<int32_t>* rows = nullptr);
  Status Store(const TestBucket& bucket, int32_t state, const std::vector<float>& data);
  Status Load(int rank, const TestBucket& bucket, int32_t state, std::vector<float>* data,
              int64_t timeout_ms = kTimeoutMs);
  void ExpectLoaded(int rank, const TestBucket& bucket, int32_t state,
                    const std::vector<float>& expected);

 private:
  struct Member {
    int incarnation = 0;
    std::unique_ptr<Optimizer> optimizer;  // outlives the communicator
    std::unique_ptr<Communicator> communicator;
    std::promise<Status> result = {};  // of a server
    std::shared_future<Status> served = {};
    std::thread thread = {};
  };

  void OnAll(const std::function<void(int rank)>& body);
  Status Make(const RankInfo& info, Member* out);
  Status MakeRank(int rank);
  void StartServer(int index, std::promise<Status>* made);
  // Of what is sent or received, submitted next.
  Transfer TransferOf(int rank, const TestBucket& bucket, const float* send, float* recv,
                      const std::vector<int32_t>* rows = nullptr, int64_t timeout_ms = kTimeoutMs);

  const int server_count_;
  const OptimizerChoice choice_;
  const std::shared_ptr<MemoryStoreTable> store_ = std::make_shared<MemoryStoreTable>();
  std::mutex mutex_;
  std::deque<MemoryHost> hosts_;  // guarded by mutex_
  std::vector<Member> ranks_, servers_;
  Status error_;  // why there is no run
};

// Waits for it and releases it.
Status Finish(Work* work);

}  // namespace engine::conform
