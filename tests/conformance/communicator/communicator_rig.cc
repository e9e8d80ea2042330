#include "tests/conformance/communicator/communicator_rig.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

namespace engine::test {
namespace {

constexpr uint8_t kGarbage = 0xa5;

// The 16-bit formats, for the small whole numbers that are used here: all of them are exact.
uint16_t EncodeFloat16(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const auto bits = static_cast<uint16_t>((fraction * 2 - 1) * 1024);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent - 1 + 15) << 10) | bits);
}

double DecodeFloat16(uint16_t bits) {
  if ((bits & 0x7fff) == 0) return 0;
  const double magnitude = std::ldexp(1 + (bits & 0x3ff) / 1024.0, ((bits >> 10) & 31) - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

template <typename T>
void Put(uint8_t* data, int64_t index, T value) {
  std::memcpy(data + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Take(const uint8_t* data, int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

void Encode(DType dtype, uint8_t* data, int64_t index, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return Put(data, index, static_cast<float>(value));
    case DType::kInt32:
      return Put(data, index, static_cast<int32_t>(value));
    case DType::kUint8:
      return Put(data, index, static_cast<uint8_t>(value));
    case DType::kBFloat16:
      return Put(data, index,
                 static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
    case DType::kFloat16:
      return Put(data, index, EncodeFloat16(value));
  }
}

double Decode(DType dtype, const uint8_t* data, int64_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return Take<float>(data, index);
    case DType::kInt32:
      return Take<int32_t>(data, index);
    case DType::kUint8:
      return Take<uint8_t>(data, index);
    case DType::kBFloat16:
      return std::bit_cast<float>(uint32_t{Take<uint16_t>(data, index)} << 16);
    case DType::kFloat16:
      return DecodeFloat16(Take<uint16_t>(data, index));
  }
  return NAN;
}

// Sums of four ranks' digits are exact in every dtype: 8 bits in the small ones, 20 in the others.
int DigitBits(DType dtype) {
  return SizeOf(dtype) == 4 ? 5 : 2;
}

}  // namespace

void RunRanks(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::unique_ptr<MemoryHost>> MakeRankHosts(int world_size) {
  const auto store = std::make_shared<MemoryStoreTable>();
  std::vector<std::unique_ptr<MemoryHost>> hosts;
  for (int rank = 0; rank < world_size; ++rank) {
    const RankInfo ranks{
        .rank = rank, .world_size = world_size, .local_rank = rank, .local_world_size = world_size};
    hosts.push_back(std::make_unique<MemoryHost>(ranks, store, DeviceOfRank(rank)));
  }
  return hosts;
}

World::World(const std::string& path, int world_size, const OptionValues::Overrides& options)
    : hosts_(MakeRankHosts(world_size)), communicators_(static_cast<size_t>(world_size)) {
  const auto plugin = PluginUnderTest::Load(path);
  if (!plugin.ok()) {
    ADD_FAILURE() << plugin.status().message();
    return;
  }
  std::vector<Status> errors(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](int r) {
    const auto i = static_cast<size_t>(r);
    auto created = plugin->Create<Communicator>(*hosts_[i], options);
    if (created.ok()) {
      communicators_[i] = std::move(*created);
    } else {
      errors[i] = created.status();
    }
  });
  for (int r = 0; r < world_size; ++r) {
    const Status& error = errors[static_cast<size_t>(r)];
    EXPECT_TRUE(error.ok()) << "rank " << r << ": " << error.message();
  }
}

bool World::ok() const {
  return std::all_of(communicators_.begin(), communicators_.end(),
                     [](const auto& communicator) { return communicator != nullptr; });
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
TransferBuffers::TransferBuffers(const TransferCase& transfer_case, int rank, int world_size)
    : case_(transfer_case),
      rank_(rank),
      world_size_(world_size),
      sends_from_recv_(case_.in_place && case_.kind != TransferKind::kReduceScatter),
      receives_into_send_(case_.in_place && case_.kind == TransferKind::kReduceScatter),
      send_(rank, static_cast<size_t>(SendCount()) * SizeOf(case_.dtype) + 1),
      recv_(rank, static_cast<size_t>(RecvCount()) * SizeOf(case_.dtype) + 1) {
  const size_t own_slice = static_cast<size_t>(rank * case_.count) * SizeOf(case_.dtype);
  if (receives_into_send_) received_at_ = own_slice;
  if (sends_from_recv_ && case_.kind == TransferKind::kAllGather) sent_at_ = own_slice;
}

void TransferBuffers::Fill() {
  std::vector<uint8_t> bytes(sent().size(), kGarbage);
  for (int64_t i = 0; i < SendCount(); ++i) {
    Encode(case_.dtype, bytes.data() + sent_at_, i, Input(rank_, i));
  }
  sent().Set(bytes);
  DeviceBytes& other = sends_from_recv_ ? send_ : recv_;
  other.Set(std::vector<uint8_t>(other.size(), kGarbage));
}

Transfer TransferBuffers::MakeTransfer(uint64_t sequence, uint64_t key) {
  Transfer transfer{.kind = case_.kind,
                    .dtype = case_.dtype,
                    .reduction = case_.reduction,
                    .root = case_.root,
                    .send = sent().data() + sent_at_,
                    .recv = received().data() + received_at_,
                    .count = case_.count,
                    .key = key,
                    .sequence = sequence};
  if (case_.kind == TransferKind::kBarrier) transfer.send = transfer.recv = nullptr;
  return transfer;
}

::testing::AssertionResult TransferBuffers::Check() const {
  if (!Receives()) return ::testing::AssertionSuccess();
  const std::vector<uint8_t> bytes = received().Get();
  for (int64_t i = 0; i < RecvCount(); ++i) {
    const double got = Decode(case_.dtype, bytes.data() + received_at_, i), expected = Expected(i);
    if (got == expected) continue;
    auto failure = ::testing::AssertionFailure();
    failure << case_.Words() << ", rank " << rank_ << " of " << world_size_ << ": element " << i
            << " is " << got << " instead of " << expected;
    if (case_.reduction == Reduction::kSum && got >= 0 && got < expected) {
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

double TransferBuffers::Input(int rank, int64_t index) const {
  const int bits = DigitBits(case_.dtype);
  const int64_t largest = (1 << bits) - 1;
  if (case_.reduction == Reduction::kSum) {
    return static_cast<double>((index % largest + 1) << (rank * bits));
  }
  // Each rank wins at some index.
  return static_cast<double>((rank + index) % world_size_ * 16 + index % 16);
}

double TransferBuffers::Expected(int64_t index) const {
  switch (case_.kind) {
    case TransferKind::kAllGather:
      return Input(static_cast<int>(index / case_.count), index % case_.count);
    case TransferKind::kBroadcast:
      return Input(case_.root, index);
    default:
      break;
  }
  if (case_.kind == TransferKind::kReduceScatter) index += rank_ * case_.count;
  double result = Input(0, index);
  for (int r = 1; r < world_size_; ++r) {
    const double input = Input(r, index);
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

bool TransferBuffers::Receives() const {
  return case_.kind != TransferKind::kBarrier;
}

Status SubmitAndWait(Communicator& communicator, const Transfer& transfer) {
  Work* work = nullptr;
  ENGINE_RETURN_IF_ERROR(communicator.Submit(transfer, &work));
  const Status status = work->WaitHost(transfer.timeout_ms + 5000);
  work->Release();
  return status;
}

Work* MustSubmit(Communicator& communicator, const Transfer& transfer) {
  Work* work = nullptr;
  const Status status = communicator.Submit(transfer, &work);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(work == nullptr, !status.ok());
  return work;
}

int64_t MonotonicNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string NameOfLibrary(const ::testing::TestParamInfo<std::string>& library) {
  std::string name = library.param.substr(library.param.rfind('/') + 1);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

std::vector<Worlds> WorldsOf(const std::vector<std::string>& paths, int least, int most) {
  std::vector<Worlds> all;
  for (const std::string& path : paths) all.push_back({path, least, most});
  return all;
}

void PrintTo(const Worlds& worlds, std::ostream* out) {
  *out << worlds.path << ", " << worlds.least << " to " << worlds.most << " ranks";
}

std::string NameOfWorlds(const ::testing::TestParamInfo<Worlds>& worlds) {
  return NameOfLibrary({worlds.param.path, worlds.index});
}

std::vector<TransferCase> AllCases(const CommunicatorTraits& traits, int world_size,
                                   const std::vector<int64_t>& counts) {
  std::vector<TransferCase> cases;
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
        for (const int64_t count : counts) {
          for (const bool in_place : {false, true}) {
            cases.push_back({.kind = k,
                             .dtype = static_cast<DType>(dtype),
                             .reduction = static_cast<Reduction>(reduction),
                             .count = count,
                             .in_place = in_place,
                             .root = static_cast<int>(cases.size()) % world_size});
          }
        }
      }
    }
  }
  return cases;
}

}  // namespace engine::test
