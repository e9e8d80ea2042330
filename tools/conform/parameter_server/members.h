// The members of one run, driven by a test: mostly from one thread, because nothing but the setup
// calls blocks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/conform/communicator/communicator_rig.h"
#include "tools/conform/parameter_server/served_buckets.h"
#include "tools/conform/parameter_server/served_world.h"

namespace engine::conform {

constexpr int64_t kTimeoutMs = 20000;  // of whatever should succeed

class Members {
 public:
  Members(const ServedCase& served, int ranks, const OptimizerChoice& optimizer = {});
  // All leave; fails the test when a server does not notice.
  ~Members();

  bool ok() const { return ok_; }  // failures are reported by the constructor
  int ranks() const { return static_cast<int>(ranks_.size()); }
  ParameterTraits traits() { return client(0).traits(); }
  Communicator& communicator(int rank) { return *At(rank).communicator; }
  ParameterClient& client(int rank);
  Optimizer& optimizer(int rank) { return *At(rank).optimizer; }
  Communicator& server(int index) { return *servers_[static_cast<size_t>(index)]->communicator; }

  // Every rank registers the buckets: at the same time, because a server inside of a rank has its
  // optimizer from there.
  [[nodiscard]] ::testing::AssertionResult Register(const std::vector<TestBucket>& buckets);
  // ... and rank 0 stores their values and the others load them.
  [[nodiscard]] ::testing::AssertionResult Start(const std::vector<TestBucket>& buckets);

  // Destroys what the rank has.
  void Leave(int rank);
  // Another process takes its place: it has to Register.
  [[nodiscard]] ::testing::AssertionResult Rejoin(int rank);

  // What Serve returned; kTimeout when it does not return in time.
  Status Served(int index);

  // Begins a step for one rank.
  Status Begin(int rank, uint64_t step, float learning_rate = 0.125f, float weight = 1);
  // Submits; null and a failure when that is refused.
  Work* SubmitPush(int rank, const TestBucket& bucket, const std::vector<float>& gradient);
  Work* SubmitPull(int rank, const TestBucket& bucket, std::vector<float>* value,
                   int64_t timeout_ms = kTimeoutMs);
  // Submits and waits; the error of either.
  Status Push(int rank, const TestBucket& bucket, const std::vector<float>& gradient,
              const std::vector<int32_t>* rows = nullptr);
  Status Pull(int rank, const TestBucket& bucket, std::vector<float>* value,
              const std::vector<int32_t>* rows = nullptr);
  Status Load(int rank, const TestBucket& bucket, int32_t state, std::vector<float>* data,
              int64_t timeout_ms = kTimeoutMs);

 private:
  struct Rank {
    int incarnation = 0;
    std::unique_ptr<Optimizer> optimizer;  // outlives the communicator
    std::unique_ptr<Communicator> communicator;
  };
  struct Server {
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Communicator> communicator;
    std::promise<Status> result;
    std::shared_future<Status> served;
    std::thread thread;
  };

  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  ::testing::AssertionResult OnAll(const std::function<Status(int rank)>& body);
  Status MakeRank(int rank);
  // Of what is sent or received, submitted next.
  Transfer TransferOf(int rank, const TestBucket& bucket, const float* send, float* recv,
                      const std::vector<int32_t>* rows = nullptr, int64_t timeout_ms = kTimeoutMs);
  Work* Submit(int rank, const Transfer& transfer);
  void StartServer(int index, std::promise<Status>* made);

  const OptimizerChoice choice_;
  std::unique_ptr<ServedWorld> world_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Server>> servers_;
  bool ok_ = false;
};

// Waits for it and releases it.
Status Finish(Work* work);

}  // namespace engine::conform
