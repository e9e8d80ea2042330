// Ranks as threads over a store in memory, and transfers whose results can be told right from
// wrong.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "tests/conformance/communicator/device_bytes.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/memory_host.h"

namespace engine::test {

// Runs body(rank) on `world_size` threads.
void RunRanks(int world_size, const std::function<void(int rank)>& body);

// What a rank of a world is created with.
using OptionsOfRank = std::function<OptionValues::Overrides(int rank)>;

// The communicators of all ranks of one world; each rank has the device of device_bytes.h.
class World {
 public:
  explicit World(const std::string& path, int world_size,
                 const OptionValues::Overrides& options = {},
                 int64_t rendezvous_timeout_ms = RankInfo().rendezvous_timeout_ms);

  // What the first `present` ranks are told when their communicators are created.
  static std::vector<Status> CreationErrors(
      const std::string& path, int present, int world_size, const OptionsOfRank& options,
      int64_t rendezvous_timeout_ms = RankInfo().rendezvous_timeout_ms);

  int size() const { return static_cast<int>(hosts_.size()); }
  Communicator& rank(int rank) { return *communicators_[static_cast<size_t>(rank)]; }
  MemoryHost& host(int rank) { return *hosts_[static_cast<size_t>(rank)]; }
  void Destroy(int rank) { communicators_[static_cast<size_t>(rank)].reset(); }
  // Whether results can be right: not with a communicator that only measures.
  bool moves_data() { return size() == 1 || rank(0).traits().no_op == 0; }

 private:
  World(int world_size, int64_t rendezvous_timeout_ms)
      : hosts_(MakeMemoryHosts(world_size, DeviceOfRank, rendezvous_timeout_ms)),
        communicators_(hosts_.size()) {
    for (const auto& host : hosts_) host->inner_plugins = &inner_.emplace_back(*host);
  }
  std::vector<Status> CreateRanks(const std::string& path, int present,
                                  const OptionsOfRank& options);

  std::vector<std::unique_ptr<MemoryHost>> hosts_;
  std::deque<TestInnerPlugins> inner_;
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

// One rank's buffers of a case. Input elements encode (rank, index): in a sum every rank has digits
// of its own, so a wrong sum says which rank was missed. They lie on the rank's device if it has
// one, or in `shared`.
class TransferBuffers {
 public:
  TransferBuffers(const TransferCase& transfer_case, int rank, int world_size,
                  SharedMemory* shared = nullptr);

  // Fills the input, and the output with something else.
  void Fill();
  Transfer MakeTransfer(uint64_t sequence, uint64_t key = 0);
  const TransferCase& transfer_case() const { return case_; }
  // Reports the first wrong element.
  ::testing::AssertionResult Check() const;

 private:
  // In place one of the two holds both.
  DeviceBytes& sent() { return sends_from_recv_ ? recv_ : send_; }
  const DeviceBytes& received() const { return receives_into_send_ ? send_ : recv_; }
  float Input(int rank, int64_t index) const;
  float Expected(int64_t index) const;
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

// Submits `transfer`; null and a failure when that is refused.
Work* MustSubmit(Communicator& communicator, const Transfer& transfer);

// A rank that is a process of its own: it all-reduces, several buffers at a time, some of them in
// shared memory where the communicator offers that, until something fails.
struct RankProcess {
  // Exit codes beside those of StatusCode.
  enum : int { kBlamesAnother = 100, kMeasuresOnly, kStalled };

  std::string path;
  std::filesystem::path folder;  // of the store of all ranks
  int rank = 0, size = 2;
  int blames = 1;  // whom a failure has to name
  OptionValues::Overrides options;
  int64_t timeout_ms = 20000;
  int64_t rendezvous_timeout_ms = RankInfo().rendezvous_timeout_ms;
  int signal = 0;  // that it sends itself with transfers under way

  pid_t Start() const;

 private:
  int Run() const;
};

// Waits for its end: exit code, or 128 + signal.
int EndOf(pid_t process);

// The clock of Work::started_ns.
int64_t MonotonicNs();

// A library and the sizes of the worlds that a test makes with it. Those of one rank are tests of
// their own, OneRank/*: they need no more than one device.
struct Worlds {
  std::string path;
  int least = 1, most = 1;
};
std::vector<Worlds> WorldsOf(const std::vector<std::string>& paths, int least, int most);
void PrintTo(const Worlds& worlds, std::ostream* out);
std::string NameOfWorlds(const ::testing::TestParamInfo<Worlds>& worlds);

// Every kind and dtype of the traits, all reductions, in and out of place, over the given counts.
std::vector<TransferCase> AllCases(const CommunicatorTraits& traits, int world_size,
                                   const std::vector<int64_t>& counts);

}  // namespace engine::test
