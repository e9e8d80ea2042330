#include "tools/conform/communicator/communicator_rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "app/launch/folder_host.h"
#include "tools/conform/ops/elements.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr uint8_t kGarbage = 0xa5;

// Sums of four ranks' digits are exact in every dtype: 8 bits in the small ones, 20 in the others.
constexpr int kRanksWithDigits = 4;
int DigitBits(DType dtype) {
  return SizeOf(dtype) == 4 ? 5 : 2;
}

base::RankContext* Launched() {
  return HasSubject() ? UnderTest().launched : nullptr;
}

// The same on all ranks of a launcher's job, and new in every call: tests are the same there.
std::string NewName(const char* what) {
  static auto* const counts = new std::map<std::string, int>;  // within each test, which may fail
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = "conform/";
  if (test) name.append(test->test_suite_name()).append(".").append(test->name()).append("/");
  return name + what + std::to_string((*counts)[name]++);
}

}  // namespace

bool IsLaunched() {
  return Launched() != nullptr;
}

std::vector<int> Sizes(int least, int most) {
  int only = HasSubject() ? UnderTest().ranks : 0;
  if (Launched() != nullptr) only = Launched()->info.world_size;
  if (only > 0) return only < least ? std::vector<int>() : std::vector<int>{only};
  std::vector<int> sizes;
  for (int size = least; size <= most; ++size) sizes.push_back(size);
  return sizes;
}

int OneSize(int least, int most) {
  const std::vector<int> sizes = Sizes(least, most);
  return sizes.empty() ? 0 : sizes.back();
}

void RunRanks(int world_size, const std::function<void(int rank)>& body) {
  const auto run = [&](int rank) {
    try {
      body(rank);
    } catch (const Status& status) {
      ADD_FAILURE() << "rank " << rank << ": " << status.message();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
  };
  if (const base::RankContext* launched = Launched()) {
    RankBarrier end(launched->info.world_size);
    if (launched->info.rank < world_size) run(launched->info.rank);
    return end.Wait(launched->info.rank);
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
}

void RunWorlds(int least, int most, const std::function<void(World& world, int rank)>& body) {
  for (const int size : Sizes(least, most)) {
    World world(size);
    RunRanks(size, [&](int rank) { body(world, rank); });
  }
}

RankBarrier::RankBarrier(int size) : size_(size), prefix_(NewName("barrier") + "/") {}

void RankBarrier::Arrive(int rank, const std::string& text) {
  const std::string key = prefix_ + std::to_string(rank);
  if (base::RankContext* launched = Launched()) return Must(launched->store.Set(key, text));
  table_->Set(key, text);
}

std::string RankBarrier::Await(int rank) {
  const std::string key = prefix_ + std::to_string(rank);
  if (base::RankContext* launched = Launched()) return Must(launched->store.Get(key, 2 * kWaitMs));
  std::string text;
  const bool came = table_->Get(key, 2 * kWaitMs, &text);
  Must(came ? Status() : Status::Error(StatusCode::kTimeout, "rank %d did not come", rank));
  return text;
}

World::World(const PluginUnderTest& plugin, int world_size, int64_t rendezvous_timeout_ms)
    : communicators_(static_cast<size_t>(world_size)) {
  if (const base::RankContext* launched = Launched()) {
    context_ = std::make_unique<base::RankContext>(*launched);
    context_->info.rendezvous_timeout_ms = rendezvous_timeout_ms;
    device_ = DeviceOfRank(context_->info.local_rank);
    launched_host_ = std::make_unique<plugin::PluginHost>(plugin.name() + "/" + NewName("world"),
                                                          *context_, &device_, nullptr);
    return;
  }
  memory_hosts_ = MakeMemoryHosts(world_size, DeviceOfRank, rendezvous_timeout_ms);
}

World::World(int world_size, const OptionValues::Overrides& options)
    : World(UnderTest().plugin, world_size, options, kWaitMs) {}

World::World(const std::string& path, int world_size, const OptionValues::Overrides& options,
             int64_t rendezvous_timeout_ms)
    : World(Must(PluginUnderTest::Load(path)), world_size, options, rendezvous_timeout_ms) {}

World::World(const PluginUnderTest& plugin, int world_size, const OptionValues::Overrides& options,
             int64_t rendezvous_timeout_ms)
    : World(plugin, world_size, rendezvous_timeout_ms) {
  for (const Status& error : CreateRanks(plugin, world_size, [&](int) { return options; })) {
    Must(error);
  }
}

std::vector<Status> World::CreationErrors(const PluginUnderTest& plugin, int present,
                                          int world_size, const OptionsOfRank& options,
                                          int64_t rendezvous_timeout_ms) {
  return World(plugin, world_size, rendezvous_timeout_ms).CreateRanks(plugin, present, options);
}

std::vector<Status> World::CreateRanks(const PluginUnderTest& plugin, int present,
                                       const OptionsOfRank& options) {
  std::vector<Status> errors(static_cast<size_t>(present));
  RunRanks(present, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    Host& host = launched_host_ ? static_cast<Host&>(*launched_host_) : *memory_hosts_[r];
    auto created = plugin.Create<Communicator>(host, options(rank));
    errors[r] = created.status();
    if (created.ok()) communicators_[r] = std::move(*created);
  });
  if (const base::RankContext* launched = Launched()) {  // of the other ranks nothing is known
    const auto own = static_cast<size_t>(launched->info.rank);
    return own < errors.size() ? std::vector<Status>{errors[own]} : std::vector<Status>{};
  }
  return errors;
}

CommunicatorTraits World::traits() const {
  const size_t here = launched_host_ ? static_cast<size_t>(context_->info.rank) : 0;
  return communicators_[here]->traits();
}

std::string TransferCase::Words() const {
  const char* const reductions[] = {"sum", "max", "min"};
  std::string words = std::string(Name(kind)) + " of " + std::to_string(count) + " " + Name(dtype);
  if (kind == TransferKind::kAllReduce || kind == TransferKind::kReduceScatter) {
    words += std::string(", ") + reductions[static_cast<int>(reduction)];
  }
  if (kind == TransferKind::kBroadcast) words += ", root " + std::to_string(root);
  return words + (in_place ? ", in place" : "");
}

// One byte more than is moved, so that there is an address where nothing is.
TransferBuffers::TransferBuffers(const TransferCase& transfer_case, int rank, int world_size,
                                 SharedMemory* shared)
    : case_(transfer_case),
      rank_(rank),
      world_size_(world_size),
      sends_from_recv_(case_.in_place && case_.kind != TransferKind::kReduceScatter),
      receives_into_send_(case_.in_place && case_.kind == TransferKind::kReduceScatter),
      send_(rank, static_cast<size_t>(SendCount()) * SizeOf(case_.dtype) + 1, shared),
      recv_(rank, static_cast<size_t>(RecvCount()) * SizeOf(case_.dtype) + 1, shared) {
  const size_t own_slice = static_cast<size_t>(rank * case_.count) * SizeOf(case_.dtype);
  if (receives_into_send_) received_at_ = own_slice;
  if (sends_from_recv_ && case_.kind == TransferKind::kAllGather) sent_at_ = own_slice;
  Fill();
}

void TransferBuffers::Fill() {
  std::vector<uint8_t> bytes(sent().size(), kGarbage);
  uint8_t* const begin = bytes.data() + sent_at_;
  const int64_t first = std::min(SendCount(), Period());
  for (int64_t i = 0; i < first; ++i) {  // whole numbers that are exact in every dtype
    WriteElement(case_.dtype, begin, static_cast<size_t>(i), Input(rank_, i));
  }
  const size_t end = static_cast<size_t>(SendCount()) * SizeOf(case_.dtype);
  for (size_t at = static_cast<size_t>(first) * SizeOf(case_.dtype); at < end; at *= 2) {
    std::copy_n(begin, std::min(at, end - at), begin + at);
  }
  sent().Set(bytes);
  DeviceBytes& other = sends_from_recv_ ? send_ : recv_;
  other.Set(std::vector<uint8_t>(other.size(), kGarbage));
}

Transfer TransferBuffers::MakeTransfer(uint64_t sequence, uint64_t key, int64_t timeout_ms) {
  Transfer transfer{.kind = case_.kind,
                    .dtype = case_.dtype,
                    .reduction = case_.reduction,
                    .root = case_.root,
                    .send = sent().data() + sent_at_,
                    .recv = received().data() + received_at_,
                    .count = case_.count,
                    .key = key,
                    .sequence = sequence,
                    .timeout_ms = timeout_ms};
  if (case_.kind == TransferKind::kBarrier) transfer.send = transfer.recv = nullptr;
  return transfer;
}

::testing::AssertionResult TransferBuffers::Check() const {
  const std::vector<uint8_t> bytes = received().Get();
  const int64_t slice = case_.kind == TransferKind::kAllGather ? case_.count : RecvCount();
  for (int64_t i = 0; i < RecvCount(); ++i) {
    const int64_t rest = slice - i % slice;
    if (slice - rest == Period() && Repeats(bytes, i, rest)) {
      i += rest - 1;
      continue;
    }
    const double expected = Expected(i);
    const double got =
        ReadElement(case_.dtype, bytes.data() + received_at_, static_cast<size_t>(i));
    if (got == expected) continue;
    auto failure = ::testing::AssertionFailure();
    failure << case_.Words() << ", rank " << rank_ << " of " << world_size_ << ": element " << i
            << " is " << got << " instead of " << expected;
    const bool has_digits = case_.reduction == Reduction::kSum && world_size_ <= kRanksWithDigits;
    if (has_digits && got >= 0 && got < expected) {
      const auto missing = static_cast<int64_t>(expected - got);
      for (int r = 0; r < world_size_; ++r) {
        const int bits = DigitBits(case_.dtype);
        if ((missing >> (r * bits)) & ((1 << bits) - 1)) failure << "; rank " << r << " is missing";
      }
    }
    return failure;
  }
  return ::testing::AssertionSuccess();
}

float TransferBuffers::Input(int rank, int64_t index) const {
  if (case_.reduction == Reduction::kSum && world_size_ > kRanksWithDigits) {
    return static_cast<float>((rank + index) % 3 + 1);
  }
  if (case_.reduction == Reduction::kSum) {
    const int bits = DigitBits(case_.dtype);
    const int64_t digit = index % ((1 << bits) - 1) + 1;
    return static_cast<float>(digit << (rank * bits));
  }
  // Each rank wins at some index.
  return static_cast<float>((rank + index) % world_size_ * 16 + index % 16);
}

// After so many elements the inputs, and what becomes of them in a slice, repeat.
int64_t TransferBuffers::Period() const {
  if (case_.reduction != Reduction::kSum) return int64_t{16} * world_size_;
  return world_size_ > kRanksWithDigits ? 3 : (1 << DigitBits(case_.dtype)) - 1;
}

bool TransferBuffers::Repeats(const std::vector<uint8_t>& bytes, int64_t begin,
                              int64_t count) const {
  const size_t size = SizeOf(case_.dtype);
  const uint8_t* const at = bytes.data() + received_at_ + static_cast<size_t>(begin) * size;
  const uint8_t* const before = at - static_cast<size_t>(Period()) * size;
  return std::memcmp(at, before, static_cast<size_t>(count) * size) == 0;
}

float TransferBuffers::Expected(int64_t index) const {
  if (case_.kind == TransferKind::kAllGather) {
    return Input(static_cast<int>(index / case_.count), index % case_.count);
  }
  if (case_.kind == TransferKind::kBroadcast) return Input(case_.root, index);
  if (case_.kind == TransferKind::kReduceScatter) index += rank_ * case_.count;
  float result = Input(0, index);
  for (int r = 1; r < world_size_; ++r) {
    const float input = Input(r, index);
    if (case_.reduction == Reduction::kSum) result += input;
    if (case_.reduction == Reduction::kMax) result = std::max(result, input);
    if (case_.reduction == Reduction::kMin) result = std::min(result, input);
  }
  return result;
}

int64_t TransferBuffers::SendCount() const {
  if (case_.kind == TransferKind::kBarrier) return 0;
  return case_.kind == TransferKind::kReduceScatter ? case_.count * world_size_ : case_.count;
}

int64_t TransferBuffers::RecvCount() const {
  if (case_.kind == TransferKind::kBarrier) return 0;
  return case_.kind == TransferKind::kAllGather ? case_.count * world_size_ : case_.count;
}

Status SubmitAndWait(Communicator& communicator, const Transfer& transfer) {
  Work* work = nullptr;
  ENGINE_RETURN_IF_ERROR(communicator.Submit(transfer, &work));
  const Status status = work->WaitHost(transfer.timeout_ms + 5000);
  work->Release();
  return status;
}

void ExpectRight(World& world, int rank, TransferBuffers& buffers, uint64_t sequence) {
  buffers.Fill();
  const Status status = SubmitAndWait(world.rank(rank), buffers.MakeTransfer(sequence));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(buffers.Check());
}

Work* MustSubmit(Communicator& communicator, const Transfer& transfer) {
  Work* work = nullptr;
  Must(communicator.Submit(transfer, &work));
  EXPECT_NE(work, nullptr);
  return work;
}

void ExpectError(const Status& status, StatusCode code, int rank) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_TRUE(rank < 0 || status.rank() == rank) << status.rank() << ": " << status.message();
}

Status ExpectRefused(Communicator& communicator, const Transfer& transfer) {
  Work* work = nullptr;
  const Status status = communicator.Submit(transfer, &work);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(work, nullptr);
  return status;
}

void ExpectDone(Work* work) {
  EXPECT_OK(work->WaitHost(kWaitMs));
  work->Release();
}

namespace {

pid_t Fork(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(body());
    } catch (const Status& status) {
      _exit(static_cast<int>(status.code()));
    }
  }
  EXPECT_GT(child, 0);
  return child;
}

}  // namespace

pid_t RankProcess::Start() const {
  return Fork([this] { return Run(); });
}

bool MovesDataInAChild() {
  return EndOf(Fork([] { return World(OneSize(2, 2)).moves_data() ? 0 : 1; })) == 0;
}

int RankProcess::Run() const {
  launch::FolderHost host({.rank = rank,
                           .world_size = size,
                           .local_rank = rank,
                           .local_world_size = size,
                           .rendezvous_timeout_ms = rendezvous_timeout_ms},
                          folder, DeviceOfRank(rank));
  const auto created = plugin.Create<Communicator>(host, options);
  if (!created.ok()) return static_cast<int>(created.status().code());
  Communicator& communicator = **created;
  auto* const shared = Query<SharedMemory>(communicator);
  std::vector<TransferBuffers> buffers;
  for (int i = 0; i < 4; ++i) {
    buffers.emplace_back(TransferCase{.count = 40000 * i + 1, .in_place = true}, rank, size,
                         i % 2 == 0 ? nullptr : shared);
  }
  uint64_t sequence = 0;
  for (int step = 0; step < 10000; ++step) {
    Work* works[4] = {};
    Status status;
    for (size_t i = 0; i < 4 && status.ok(); ++i) {
      status = communicator.Submit(buffers[i].MakeTransfer(sequence++, 0, timeout_ms), &works[i]);
    }
    if (signal != 0 && step == 5) raise(signal);
    for (Work* work : works) {  // all: until a work is terminal its buffers are in use
      if (!work) continue;
      const Status waited = work->WaitHost(20000);
      if (status.ok()) status = waited;
      work->Release();
    }
    if (!status.ok()) {
      return status.rank() == blames ? static_cast<int>(status.code()) : kBlamesAnother;
    }
  }
  return kStalled;
}

int EndOf(pid_t process) {
  int status = 0;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<TransferCase> AllCases(const CommunicatorTraits& traits, int world_size,
                                   const std::vector<int64_t>& counts) {
  std::vector<TransferCase> cases;
  const auto add = [&](TransferCase one) {
    for (const int64_t count : counts) {
      for (const bool in_place : {false, true}) {
        one.count = count;
        one.in_place = in_place;
        one.root = static_cast<int>(cases.size()) % world_size;
        cases.push_back(one);
      }
    }
  };
  for (int kind = 0; kind <= static_cast<int>(TransferKind::kBarrier); ++kind) {
    const auto k = static_cast<TransferKind>(kind);
    if (!(traits.kinds & Bit(k))) continue;
    if (k == TransferKind::kBarrier) {
      cases.push_back({.kind = k});
      continue;
    }
    const bool reduces = k == TransferKind::kAllReduce || k == TransferKind::kReduceScatter;
    for (int dtype = 0; dtype <= static_cast<int>(DType::kFloat16); ++dtype) {
      if (!(traits.dtypes & Bit(static_cast<DType>(dtype)))) continue;
      for (int reduction = 0; reduction <= (reduces ? 2 : 0); ++reduction) {
        add({.kind = k,
             .dtype = static_cast<DType>(dtype),
             .reduction = static_cast<Reduction>(reduction)});
      }
    }
  }
  return cases;
}

}  // namespace engine::conform
