#include "tests/emulated_cuda/cudart/block.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulated_cuda/cudart/fail.h"
#include "tests/support/elements.h"

__thread const EmulatedCudaThread* emulated_cuda_thread = nullptr;

namespace emulated_cuda {
namespace {

constexpr int kPoison = 0xff;  // four of them are a NaN, and -1
constexpr unsigned char kGuard = 0xa5;
constexpr size_t kGuardBytes = 256;
constexpr size_t kAlignment = 128;

__thread Block* t_block __attribute__((tls_model("initial-exec"))) = nullptr;

// Names of functions, mostly the same literal.
bool IsSame(const char* a, const char* b) {
  return a == b || std::strcmp(a, b) == 0;
}

std::string Text(const dim3& extent) {
  return "(" + std::to_string(extent.x) + ", " + std::to_string(extent.y) + ", " +
         std::to_string(extent.z) + ")";
}
std::string Text(const uint3& index) {
  return Text(dim3(index.x, index.y, index.z));
}

// "<library>+0x<offset>", for addr2line.
std::string Name(const void* function) {
  Dl_info info;
  char text[512];
  if (dladdr(function, &info) == 0 || !info.dli_fname) {
    std::snprintf(text, sizeof text, "%p", function);
  } else {
    std::snprintf(text, sizeof text, "%s+0x%zx", info.dli_fname,
                  static_cast<size_t>(static_cast<const char*>(function) -
                                      static_cast<const char*>(info.dli_fbase)));
  }
  return text;
}

// The part without initial values of the calling thread's variables of the library that `variable`
// is in.
struct ThreadVariables {
  const unsigned char* variable;
  unsigned char* data = nullptr;
  size_t size_bytes = 0;

  static int Look(dl_phdr_info* library, size_t, void* self_pointer) {
    auto* const self = static_cast<ThreadVariables*>(self_pointer);
    auto* const data = static_cast<unsigned char*>(library->dlpi_tls_data);
    if (!data) return 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = library->dlpi_phdr[i];
      if (part.p_type != PT_TLS || self->variable < data || self->variable >= data + part.p_memsz) {
        continue;
      }
      self->data = data + part.p_filesz;
      self->size_bytes = part.p_memsz - part.p_filesz;
      return 1;
    }
    return 0;
  }
};

float FromBf16(const unsigned char* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return engine::test::FromBFloat16(bits);
}

}  // namespace

Block::Block(Order order)
    : order_(order),
      threads_(kMaxThreads),
      warps_(kMaxThreads / kWarpSize),
      memory_(kMaxSharedBytes + kGuardBytes + 2 * kAlignment) {
  for (uint32_t i = 0; i < kMaxThreads; ++i) threads_[i].index = i;
}

Block::~Block() = default;

Block& Block::Current() {
  if (!t_block) Fail("a function of kernels was called outside of a kernel");
  return *t_block;
}

void Block::BeginKernel(const EmulatedCudaKernel& kernel) {
  kernel_ = &kernel;
  count_ = kernel.block.x * kernel.block.y * kernel.block.z;
  ThreadVariables variables{static_cast<unsigned char*>(kernel.find_shared())};
  dl_iterate_phdr(ThreadVariables::Look, &variables);
  static_shared_ = variables.data;
  static_shared_bytes_ = variables.size_bytes;

  // As aligned as is promised, and no more.
  const auto start = reinterpret_cast<uintptr_t>(memory_.data());
  const uintptr_t shared = (start + 2 * kAlignment - 1) / (2 * kAlignment) * (2 * kAlignment);
  unsigned char* const dynamic_shared =
      memory_.data() +
      (shared - start >= kAlignment ? shared - start - kAlignment : shared - start + kAlignment);
  const uint3 size = {kernel.block.x, kernel.block.y, kernel.block.z};
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.kernel = &kernel;
    thread.view.thread_index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    thread.view.block_size = kernel.block;
    thread.view.grid_size = kernel.grid;
    thread.view.dynamic_shared = dynamic_shared;
  }
  if (kernel.checked) {
    accesses_.BeginKernel(static_shared_, static_shared_bytes_, dynamic_shared,
                          kernel.shared_bytes);
  }
}

void Block::Run(const uint3& index) {
  Prepare(index);
  t_block = this;
  for (uint32_t ended = 0; ended < count_;) {
    bool any = false;
    for (const uint32_t turn : turns_) {
      Thread& thread = threads_[turn];
      if (thread.state != State::kReady) continue;
      any = true;
      current_ = &thread;
      emulated_cuda_thread = &thread.view;
      if (!fibers_.Resume(turn)) {
        thread.state = State::kEnded;
        ++ended;
      }
    }
    if (!any) FailDeadlock();
  }
  emulated_cuda_thread = nullptr;
  t_block = nullptr;
  CheckAfter();
}

void Block::Prepare(const uint3& index) {
  index_ = index;
  Fill(order_, count_, &turns_);
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.view.block_index = index;
    thread.state = State::kReady;
    thread.group = 0;
    thread.copies.clear();
    fibers_.Start(i, RunThread, &thread);
  }
  for (Warp& warp : warps_) warp.arrived = 0;
  at_barrier_ = 0;
  PoisonShared();
  if (kernel_->checked) accesses_.BeginBlock();
}

void Block::PoisonShared() {
  unsigned char* const shared = threads_[0].view.dynamic_shared;
  std::memset(shared, kPoison, kernel_->shared_bytes);
  std::memset(shared + kernel_->shared_bytes, kGuard, kGuardBytes);
  if (static_shared_bytes_ > 0) std::memset(static_shared_, kPoison, static_shared_bytes_);
}

void Block::CheckAfter() const {
  const unsigned char* const guard = threads_[0].view.dynamic_shared + kernel_->shared_bytes;
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != kGuard) {
      Fail("byte %zu of dynamic shared memory was written, which has %zu: %s",
           kernel_->shared_bytes + i, kernel_->shared_bytes, Where().c_str());
    }
  }
}

void Block::RunThread(void* thread_pointer) {
  const Thread& thread = *static_cast<const Thread*>(thread_pointer);
  thread.kernel->run(thread.kernel->arguments);
}

void Block::Barrier() {
  if (++at_barrier_ == count_) {
    ++barriers_;
    at_barrier_ = 0;
    for (uint32_t i = 0; i < count_; ++i) threads_[i].state = State::kReady;
  } else {
    current().state = State::kAtBarrier;
  }
  fibers_.Suspend();
}

template <typename Complete>
uint32_t Block::Meet(const char* function, unsigned mask, const void* value, size_t size_bytes,
                     Complete complete) {
  Thread& thread = current();
  Warp& warp = WarpOf(thread);
  const uint32_t first = thread.index / kWarpSize * kWarpSize;
  if (mask != 0xffffffffu) FailHere("a function of warps was called with a mask of some lanes");
  if (first + kWarpSize > count_) FailHere("a function of warps was called in a part of a warp");
  if (warp.arrived == 0) warp.function = function;
  if (!IsSame(warp.function, function)) {
    Fail("thread %s is at %s, other lanes of its warp at %s: %s",
         Text(thread.view.thread_index).c_str(), function, warp.function, Where().c_str());
  }
  const uint32_t side = warp.rendezvous % 2;
  if (size_bytes > 0) {
    std::memcpy(warp.values[side][thread.index % kWarpSize].data(), value, size_bytes);
  }
  if (++warp.arrived == kWarpSize) {
    complete(warp, side);
    ++warp.rendezvous;
    warp.arrived = 0;
    for (uint32_t i = first; i < first + kWarpSize; ++i) threads_[i].state = State::kReady;
  } else {
    thread.state = State::kInWarp;
  }
  fibers_.Suspend();
  return side;
}

const unsigned char* Block::Exchange(const char* function, unsigned mask, const void* value,
                                     size_t size_bytes) {
  // Of these functions, __syncwarp alone gives nothing, and orders memory.
  if (size_bytes > 0) Access(value, size_bytes, false, false);
  const uint32_t side = Meet(function, mask, value, size_bytes, [&](Warp& warp, uint32_t) {
    if (size_bytes == 0) ++warp.barriers;
  });
  return WarpOf(current()).values[side][0].data();
}

void Block::MultiplyAdd(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  const uint32_t factors[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const uint32_t side =
      Meet("MultiplyAdd", 0xffffffffu, factors, sizeof factors,
           [](Warp& warp, uint32_t now) { Multiply(warp.values[now], &warp.products[now]); });
  const Product& product = WarpOf(current()).products[side];
  const uint32_t lane = current().index % kWarpSize;
  const uint32_t row = lane / 4, column = 2 * (lane % 4);
  d[0] += product.at[row][column];
  d[1] += product.at[row][column + 1];
  d[2] += product.at[row + 8][column];
  d[3] += product.at[row + 8][column + 1];
}

// PTX manual, "Matrix fragments for mma.m16n8k16 with floating point type": with g = lane / 4 and
// t = lane % 4, words 0 to 3 hold rows g, g + 8, g, g + 8 of the first factor, columns 2 t and
// 2 t + 1 (+ 8 in words 2 and 3); words 4 and 5 hold column g of the second factor, rows 2 t and
// 2 t + 1 (+ 8 in word 5).
void Block::Multiply(const std::array<Slot, kWarpSize>& factors, Product* product) {
  float a[16][16], b[16][8];
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t word = 0; word < 6; ++word) {
      for (uint32_t half = 0; half < 2; ++half) {
        const float value = FromBf16(&factors[lane][4 * word + 2 * half]);
        if (word < 4) {
          a[g + 8 * (word % 2)][2 * t + half + 8 * (word / 2)] = value;
        } else {
          b[2 * t + half + 8 * (word - 4)][g] = value;
        }
      }
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    std::copy(sums, sums + 8, product->at[row]);
  }
}

void Block::Access(const void* address, size_t size_bytes, bool write, bool aligned) {
  if (!kernel_->checked || fibers_.Owns(address)) return;
  // Of 16 bytes the compiler makes one access also where they are two doubles of a struct; types that
  // need 16 are asked about by __ubsan_handle_type_mismatch_v1_abort.
  if (aligned && reinterpret_cast<uintptr_t>(address) % std::min<size_t>(size_bytes, 8) != 0) {
    FailHere("an access is not aligned to its size");
  }
  const dim3& grid = kernel_->grid;
  const Thread& thread = current();
  const Moment now = {1 + index_.x + grid.x * (index_.y + grid.y * index_.z), thread.index,
                      barriers_, WarpOf(thread).barriers};
  Moment other;
  const char* const error = accesses_.Access(address, size_bytes, write, now, &other);
  if (!error) return;
  const std::string before = other.block == 0
                                 ? ""
                                 : " (the other one: thread " + std::to_string(other.thread) +
                                       " of block " + std::to_string(other.block - 1) + ")";
  FailHere((error + before).c_str());
}

bool Block::IsShared(const void* address) const {
  const auto* const byte = static_cast<const unsigned char*>(address);
  const unsigned char* const dynamic_shared = threads_[0].view.dynamic_shared;
  return (byte >= dynamic_shared && byte < dynamic_shared + kernel_->shared_bytes) ||
         (byte >= static_shared_ && byte < static_shared_ + static_shared_bytes_);
}

void Block::CopyAsync(void* shared, const void* global, size_t size_bytes, bool valid) {
  const auto misplaced = [&](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % size_bytes != 0;
  };
  if (!IsShared(shared)) FailHere("the target of an asynchronous copy is not in shared memory");
  if (misplaced(shared)) FailHere("the target of an asynchronous copy is not aligned to 16");
  if (valid && misplaced(global)) {
    FailHere("the source of an asynchronous copy is not aligned to 16");
  }
  if (valid && IsShared(global)) FailHere("the source of an asynchronous copy is shared memory");
  Access(shared, size_bytes, true, true);
  std::memset(shared, kPoison, size_bytes);
  current().copies.push_back({shared, global, size_bytes, valid, current().group});
}

void Block::CommitCopies() {
  ++current().group;
}

void Block::WaitForCopies(int pending) {
  Thread& thread = current();
  const auto under_way = [&](const Copy& copy) {
    return copy.group + static_cast<uint32_t>(pending) >= thread.group;
  };
  const auto end = std::find_if(thread.copies.begin(), thread.copies.end(), under_way);
  for (auto copy = thread.copies.begin(); copy != end; ++copy) {
    Access(copy->shared, copy->size_bytes, true, true);
    if (copy->valid) {
      Access(copy->global, copy->size_bytes, false, true);
      std::memcpy(copy->shared, copy->global, copy->size_bytes);
    } else {
      std::memset(copy->shared, 0, copy->size_bytes);
    }
  }
  thread.copies.erase(thread.copies.begin(), end);
}

std::string Block::Where() const {
  return "kernel " + Name(kernel_->function) + ", grid " + Text(kernel_->grid) + ", block " +
         Text(kernel_->block) + ", " + std::to_string(kernel_->shared_bytes) +
         " bytes of dynamic shared memory, in block " + Text(index_);
}

void Block::FailHere(const char* what) const {
  Fail("%s: %s, thread %s", what, Where().c_str(), Text(current().view.thread_index).c_str());
}

void Block::FailDeadlock() const {
  uint32_t ended = 0, at_barrier = 0, in_warp = 0;
  const char* warp_function = "";
  for (uint32_t i = 0; i < count_; ++i) {
    const State state = threads_[i].state;
    ended += state == State::kEnded;
    at_barrier += state == State::kAtBarrier;
    in_warp += state == State::kInWarp;
    if (state == State::kInWarp) warp_function = warps_[i / kWarpSize].function;
  }
  Fail(
      "deadlock: %u threads have ended, %u wait at __syncthreads, %u in functions of warps (%s): "
      "%s",
      ended, at_barrier, in_warp, warp_function, Where().c_str());
}

}  // namespace emulated_cuda

using emulated_cuda::Block;

void emulated_cuda_block_barrier() {
  Block::Current().Barrier();
}
const unsigned char* emulated_cuda_warp_exchange(const char* function, unsigned mask,
                                                 const void* value, size_t size_bytes) {
  return Block::Current().Exchange(function, mask, value, size_bytes);
}
void emulated_cuda_warp_multiply_add(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  Block::Current().MultiplyAdd(d, a, b0, b1);
}
void emulated_cuda_copy_async(void* shared, const void* global, size_t size_bytes, int valid) {
  Block::Current().CopyAsync(shared, global, size_bytes, valid != 0);
}
void emulated_cuda_commit_copies() {
  Block::Current().CommitCopies();
}
void emulated_cuda_wait_for_copies(int pending) {
  Block::Current().WaitForCopies(pending);
}
void emulated_cuda_fail(const char* what) {
  if (!emulated_cuda_thread) emulated_cuda::Fail("%s", what);
  Block::Current().FailHere(what);
}
