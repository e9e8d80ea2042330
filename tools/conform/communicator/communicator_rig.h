// Ranks, and transfers whose results can be told right from wrong.
//
// A rank is a thread of this process and meets the others in a store in memory; or, where a
// launcher started several of us (Subject::launched), this process is one rank, of a group that
// always has all of them, and every process runs the same tests in the same order.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "core/plugin/plugin_host.h"
#include "engine/communicator.h"
#include "tools/conform/communicator/device_bytes.h"
#include "tools/conform/plugin_under_test.h"

namespace engine::conform {

constexpr int64_t kWaitMs = 30000;  // for what should end
// What is promised within a second, or by a deadline: a loaded machine may take longer.
constexpr auto kPromptly = std::chrono::seconds(5);

// This process is a rank of a launcher's job.
bool IsLaunched();
// The sizes of the groups that a test makes, from `least` to `most`; of a launcher's job, or with
// -n, that one alone. Empty where it is less.
std::vector<int> Sizes(int least, int most);
// Where one group will do: the largest of them. 0: there is none.
int OneSize(int least, int most);

// Runs body(rank) on a thread for each rank, or, of a launcher's job, that of this process if it is
// less than `world_size`; ranks have met again when it returns. What it throws fails the test.
void RunRanks(int world_size, const std::function<void(int rank)>& body);

class World;
// Runs body(world, rank) on the ranks of a new world of each of Sizes(least, most).
void RunWorlds(int least, int most, const std::function<void(World& world, int rank)>& body);

// What ranks wait for within a test. Made in the same order on all ranks.
class RankBarrier {
 public:
  explicit RankBarrier(int size);
  void Arrive(int rank, const std::string& text = "");
  // What that rank brings; throws when it does not come.
  std::string Await(int rank);
  void Wait(int rank) {
    Arrive(rank);
    for (int other = 0; other < size_; ++other) (void)Await(other);
  }

 private:
  const int size_;
  const std::string prefix_;  // of keys
  const std::shared_ptr<MemoryStoreTable> table_ = std::make_shared<MemoryStoreTable>();
};

// What a rank of a world is created with.
using OptionsOfRank = std::function<OptionValues::Overrides(int rank)>;

// The communicators of one group: of all ranks, or of this process's own. Each rank has the device
// of device_bytes.h. Making one is collective.
class World {
 public:
  explicit World(int world_size, const OptionValues::Overrides& options = {});
  // Of another library than the one under test.
  World(const std::string& path, int world_size, const OptionValues::Overrides& options = {},
        int64_t rendezvous_timeout_ms = kWaitMs);

  // What the first `present` ranks (that are here) are told when their communicators are created.
  static std::vector<Status> CreationErrors(const PluginUnderTest& plugin, int present,
                                            int world_size, const OptionsOfRank& options,
                                            int64_t rendezvous_timeout_ms = kWaitMs);

  int size() const { return static_cast<int>(communicators_.size()); }
  Communicator& rank(int rank) { return *communicators_[static_cast<size_t>(rank)]; }
  // Of a rank that is here: the same traits on all.
  CommunicatorTraits traits() const;
  // Where ranks are threads.
  MemoryHost& host(int rank) { return *memory_hosts_[static_cast<size_t>(rank)]; }
  void Destroy(int rank) { communicators_[static_cast<size_t>(rank)].reset(); }
  // Whether results can be right: not with a communicator that only measures.
  bool moves_data() const { return size() == 1 || traits().no_op == 0; }

 private:
  World(const PluginUnderTest& plugin, int world_size, const OptionValues::Overrides& options,
        int64_t rendezvous_timeout_ms);
  World(const PluginUnderTest& plugin, int world_size, int64_t rendezvous_timeout_ms);
  std::vector<Status> CreateRanks(const PluginUnderTest& plugin, int present,
                                  const OptionsOfRank& options);

  std::vector<std::unique_ptr<MemoryHost>> memory_hosts_;  // if ranks are threads, else:
  std::unique_ptr<base::RankContext> context_;
  Device* device_ = nullptr;
  std::unique_ptr<plugin::PluginHost> launched_host_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

// A transfer in the abstract: what every rank has to bring and to get.
struct TransferCase {
  TransferKind kind = TransferKind::kAllReduce;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  int64_t count = 0;
  bool in_place = false;
  int root = 0;

  std::string Words() const;
};

// One rank's buffers of a case. Input elements encode (rank, index): in a sum of up to four ranks
// every one has digits of its own, so a wrong sum says which rank was missed. They lie on the
// rank's device if it has one, or in `shared`.
class TransferBuffers {
 public:
  TransferBuffers(const TransferCase& transfer_case, int rank, int world_size,
                  SharedMemory* shared = nullptr);

  // Fills the input, and the output with something else, as they are at first.
  void Fill();
  Transfer MakeTransfer(uint64_t sequence, uint64_t key = 0,
                        int64_t timeout_ms = Transfer().timeout_ms);
  const TransferCase& transfer_case() const { return case_; }
  // Reports the first wrong element.
  ::testing::AssertionResult Check() const;
  std::vector<uint8_t> Received() const { return received().Get(); }

 private:
  // In place one of the two holds both.
  DeviceBytes& sent() { return sends_from_recv_ ? recv_ : send_; }
  const DeviceBytes& received() const { return receives_into_send_ ? send_ : recv_; }
  float Input(int rank, int64_t index) const;
  float Expected(int64_t index) const;
  int64_t Period() const;
  bool Repeats(const std::vector<uint8_t>& bytes, int64_t begin, int64_t count) const;
  int64_t SendCount() const;
  int64_t RecvCount() const;

  const TransferCase case_;
  const int rank_, world_size_;
  const bool sends_from_recv_, receives_into_send_;
  DeviceBytes send_, recv_;
  size_t sent_at_ = 0, received_at_ = 0;  // bytes into sent() and received()
};

// Submits `transfer` and waits; the error of either.
Status SubmitAndWait(Communicator& communicator, const Transfer& transfer);

// Submits a transfer of `buffers` after filling them, waits, and looks at the result.
void ExpectRight(World& world, int rank, TransferBuffers& buffers, uint64_t sequence);

// Submits `transfer`; a failure that leaves the test when that is refused.
Work* MustSubmit(Communicator& communicator, const Transfer& transfer);
// A failure of this kind, of this rank (-1: whichever).
void ExpectError(const Status& status, StatusCode code, int rank = -1);
// Submits it, which fails so and makes no Work.
Status ExpectRefused(Communicator& communicator, const Transfer& transfer);
// Waits for a Work that succeeds, and releases it.
void ExpectDone(Work* work);

// A rank that is a process of its own: it all-reduces, several buffers at a time, some of them in
// shared memory where the communicator offers that, until something fails.
struct RankProcess {
  // Exit codes beside those of StatusCode.
  enum : int { kBlamesAnother = 100, kStalled };

  const PluginUnderTest& plugin;
  std::filesystem::path folder;  // of the store of all ranks
  int rank = 0, size = 2;
  int blames = 1;  // whom a failure has to name
  OptionValues::Overrides options;
  int64_t timeout_ms = 20000, rendezvous_timeout_ms = kWaitMs;
  int signal = 0;  // that it sends itself with transfers under way

  pid_t Start() const;

 private:
  int Run() const;
};

// Whether a group does, seen by a process that ends then.
bool MovesDataInAChild();

// Waits for its end: exit code, or 128 + signal.
int EndOf(pid_t process);

// Every kind and dtype of the traits, all reductions, in and out of place, over the given counts.
std::vector<TransferCase> AllCases(const CommunicatorTraits& traits, int world_size,
                                   const std::vector<int64_t>& counts);

#define EXPECT_OK(expression)                                                      \
  do {                                                                             \
    const ::engine::Status expected_ok = (expression);                             \
    EXPECT_TRUE(expected_ok.ok()) << #expression << ": " << expected_ok.message(); \
  } while (false)
#define ASSERT_OK(expression)                                                      \
  do {                                                                             \
    const ::engine::Status expected_ok = (expression);                             \
    ASSERT_TRUE(expected_ok.ok()) << #expression << ": " << expected_ok.message(); \
  } while (false)

}  // namespace engine::conform
