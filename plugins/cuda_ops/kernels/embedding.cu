#include <initializer_list>

#include "kernels/element.h"
#include "kernels/embedding.h"
#include "kernels/launch.h"

namespace engine::cuda_ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 64;  // more have nothing to do at a time on any device

// The sort takes kDigitBits of a token at a time. A block has a tile of tokens, a thread kTileRun
// neighbours of them.
constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;
constexpr int kTileRun = 8, kTile = kThreads * kTileRun;
constexpr int kScanThreads = 256;
constexpr int kChunk = 64;  // sorted tokens whose rows a block adds up
constexpr int64_t kScratchAlignment = 256;

int64_t TilesOf(int64_t count) {
  return (count + kTile - 1) / kTile;
}

__device__ int32_t ClampToken(int32_t token, int64_t vocabulary) {
  return token >= 0 && token < vocabulary ? token : 0;
}

template <typename T, int kPack>
__device__ Pack<T, kPack> PackAt(const T* data, int64_t index) {
  return *reinterpret_cast<const Pack<T, kPack>*>(data + index);
}

template <typename T, int kPack>
__global__ void EmbeddingKernel(const EmbeddingForward<T> call) {
  const int64_t packs = call.width / kPack;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < call.count * packs; i += stride) {
    const int64_t place = i / packs, column = i % packs * kPack;
    const int32_t given = call.tokens[place], token = ClampToken(given, call.vocabulary);
    if (given != token && column == 0) {
      ReportFault(call.fault, DeviceFault::kToken, given, place,
                  static_cast<int32_t>(call.vocabulary));
    }
    Pack<T, kPack> row = PackAt<T, kPack>(call.table, token * call.width + column);
    if (call.positions != nullptr) {
      const auto position =
          PackAt<T, kPack>(call.positions, place % call.length * call.width + column);
      for (int j = 0; j < kPack; ++j) {
        row.at[j] = FromFloat<T>(ToFloat(row.at[j]) + ToFloat(position.at[j]));
      }
    }
    *reinterpret_cast<Pack<T, kPack>*>(call.y + place * call.width + column) = row;
  }
}

// What the sort reads: tokens in the first pass, then what the pass before wrote.
struct SortSource {
  const int32_t* tokens;     // or null
  const TokenPlace* places;  // then
  int64_t count, vocabulary;

  __device__ TokenPlace At(int64_t i) const {
    if (tokens == nullptr) return places[i];
    return {ClampToken(tokens[i], vocabulary), static_cast<int32_t>(i)};
  }
};

__device__ int DigitOf(int32_t token, int shift) {
  return static_cast<int>(static_cast<uint32_t>(token) >> shift) % kDigits;
}

// counts[digit][thread]: how many tokens with that digit each thread of the block has.
__device__ void CountDigits(const SortSource& source, int64_t begin, int shift,
                            int32_t (*counts)[kThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int digit = 0; digit < kDigits; ++digit) counts[digit][thread] = 0;
  for (int j = 0; j < kTileRun && begin + j < source.count; ++j) {
    ++counts[DigitOf(source.At(begin + j).token, shift)][thread];
  }
  __syncthreads();
}

// digit_counts[digit * tiles + tile] = how many tokens with that digit the tile has.
__global__ void CountDigitsKernel(const SortSource source, int shift, int32_t* digit_counts) {
  __shared__ int32_t counts[kDigits][kThreads];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x * kTileRun;
  CountDigits(source, begin, shift, counts);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int digit = warp; digit < kDigits; digit += kThreads / kWarp) {
    int32_t total = 0;
    for (int i = lane; i < kThreads; i += kWarp) total += counts[digit][i];
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, offset);
    }
    if (lane == 0) digit_counts[static_cast<int64_t>(digit) * gridDim.x + blockIdx.x] = total;
  }
}

// values[i] becomes the sum of those before i. One block; each thread has a run of neighbours.
__global__ void ScanKernel(int32_t* values, int64_t count) {
  __shared__ int32_t sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t run = (count + kScanThreads - 1) / kScanThreads;
  const int64_t begin = thread * run, end = begin + run < count ? begin + run : count;
  int32_t own = 0;
  for (int64_t i = begin; i < end; ++i) own += values[i];
  sums[thread] = own;
  __syncthreads();
  int32_t before = 0;
  for (int i = 0; i < thread; ++i) before += sums[i];
  for (int64_t i = begin; i < end; ++i) {
    const int32_t value = values[i];
    values[i] = before;
    before += value;
  }
}

// Puts each token where it belongs by the digits so far. `first_places`: digit_counts, scanned.
__global__ void PlaceDigitsKernel(const SortSource source, int shift, const int32_t* first_places,
                                  TokenPlace* target) {
  __shared__ int32_t counts[kDigits][kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile + thread * kTileRun;
  CountDigits(source, begin, shift, counts);
  // What the threads before this one have of each digit: digits are shared out to warps, and a warp
  // scans kWarp threads at a time.
  const int warp = thread / kWarp, lane = thread % kWarp;
  for (int digit = warp; digit < kDigits; digit += kThreads / kWarp) {
    int32_t before = first_places[static_cast<int64_t>(digit) * gridDim.x + blockIdx.x];
    for (int first = 0; first < kThreads; first += kWarp) {
      const int32_t own = counts[digit][first + lane];
      int32_t sum = own;
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int32_t left = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(offset));
        if (lane >= offset) sum += left;
      }
      counts[digit][first + lane] = before + sum - own;
      before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
    }
  }
  __syncthreads();
  for (int j = 0; j < kTileRun && begin + j < source.count; ++j) {
    const TokenPlace token = source.At(begin + j);
    target[counts[DigitOf(token.token, shift)][thread]++] = token;
  }
}

// The sums that a thread has of its pack of columns.
template <int kPack>
struct PackSum {
  float at[kPack] = {};

  __device__ void AddTo(float* target) const {
    for (int j = 0; j < kPack; ++j) target[j] += at[j];
  }
  __device__ void Store(float* target) const {
    for (int j = 0; j < kPack; ++j) target[j] = at[j];
  }
  __device__ void Add(const float* source) {
    for (int j = 0; j < kPack; ++j) at[j] += source[j];
  }
};

// Sorted tokens, in chunks.
struct SortedTokens {
  const TokenPlace* places;
  int64_t count;

  __device__ int64_t Begin(int64_t chunk) const { return chunk * kChunk; }
  __device__ int64_t End(int64_t chunk) const {
    return Begin(chunk + 1) < count ? Begin(chunk + 1) : count;
  }
  // Whether the first (last) token of the chunk is also in the chunk before (behind).
  __device__ bool ContinuesFrom(int64_t chunk) const {
    const int64_t i = Begin(chunk);
    return i > 0 && places[i].token == places[i - 1].token;
  }
  __device__ bool ContinuesInto(int64_t chunk) const {
    const int64_t i = End(chunk);
    return i < count && places[i].token == places[i - 1].token;
  }
};

// Block (x, y): chunk x, columns from y * kThreads packs on. A run that is all in the chunk is
// added to its row; the sum of one that began before is border 0, of one that goes on (alone)
// border 1.
template <typename T, int kPack>
__global__ void AddChunksKernel(const SortedTokens tokens, const T* dy, int64_t width,
                                float* borders, float* gradient) {
  const int64_t chunk = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
  if (column >= width) return;
  const int64_t end = tokens.End(chunk);
  float* const border = borders + chunk * 2 * width + column;
  bool first = tokens.ContinuesFrom(chunk);
  const bool last = tokens.ContinuesInto(chunk);
  PackSum<kPack> sum;
  for (int64_t i = tokens.Begin(chunk); i < end; ++i) {
    const TokenPlace token = tokens.places[i];
    const auto row = PackAt<T, kPack>(dy, token.place * width + column);
    for (int j = 0; j < kPack; ++j) sum.at[j] += ToFloat(row.at[j]);
    const bool ends = i + 1 == end;
    if (!ends && tokens.places[i + 1].token == token.token) continue;
    if (first) {
      sum.Store(border);
    } else if (ends && last) {
      sum.Store(border + width);
    } else {
      sum.AddTo(gradient + token.token * width + column);
    }
    first = false;
    sum = {};
  }
}

// Block (x, y) as above: adds up the run that begins in chunk x and goes on.
template <int kPack>
__global__ void AddBordersKernel(const SortedTokens tokens, int64_t width, const float* borders,
                                 float* gradient) {
  int64_t chunk = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
  const int32_t token = tokens.places[tokens.End(chunk) - 1].token;
  const bool all_one = tokens.places[tokens.Begin(chunk)].token == token;
  // A run that fills the chunk and began before it is added up by the chunk of its beginning.
  if (column >= width || !tokens.ContinuesInto(chunk) || (all_one && tokens.ContinuesFrom(chunk))) {
    return;
  }
  PackSum<kPack> sum;
  sum.Add(borders + (chunk * 2 + 1) * width + column);
  bool goes_on = true;
  while (goes_on) {
    ++chunk;
    sum.Add(borders + chunk * 2 * width + column);
    goes_on = tokens.places[tokens.End(chunk) - 1].token == token && tokens.ContinuesInto(chunk);
  }
  sum.AddTo(gradient + token * width + column);
}

template <typename T, int kPack>
__global__ void PositionGradientKernel(const T* dy, int64_t count, int64_t length, int64_t width,
                                       float* gradient) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPack;
  if (i >= length * width) return;
  PackSum<kPack> sum;
#pragma unroll 4
  for (int64_t sample = 0; sample < count / length; ++sample) {
    const auto row = PackAt<T, kPack>(dy, sample * length * width + i);
    for (int j = 0; j < kPack; ++j) sum.at[j] += ToFloat(row.at[j]);
  }
  sum.AddTo(gradient + i);
}

template <typename T>
bool IsPacked(int64_t width, std::initializer_list<const T*> tensors) {
  bool packed = width % kPackSize<T> == 0;
  for (const T* tensor : tensors) packed = packed && IsAligned16(tensor);
  return packed;
}

// scratch.places[0] or [1], sorted; the other is overwritten.
cudaError_t LaunchSort(const int32_t* tokens, int64_t count, int64_t vocabulary,
                       const EmbeddingScratch& scratch, const TokenPlace** sorted,
                       cudaStream_t stream) noexcept {
  const auto tiles = static_cast<unsigned>(TilesOf(count));
  SortSource source = {tokens, nullptr, count, vocabulary};
  int into = 0;
  for (int shift = 0; shift == 0 || (vocabulary - 1) >> shift > 0; shift += kDigitBits) {
    cudaError_t error = Launch(CountDigitsKernel, dim3(tiles), dim3(kThreads), 0, stream, source,
                               shift, scratch.digit_counts);
    if (error != cudaSuccess) return error;
    error = Launch(ScanKernel, dim3(1), dim3(kScanThreads), 0, stream, scratch.digit_counts,
                   static_cast<int64_t>(tiles) * kDigits);
    if (error != cudaSuccess) return error;
    error = Launch(PlaceDigitsKernel, dim3(tiles), dim3(kThreads), 0, stream, source, shift,
                   scratch.digit_counts, scratch.places[into]);
    if (error != cudaSuccess) return error;
    *sorted = scratch.places[into];
    source = {nullptr, scratch.places[into], count, vocabulary};
    into = 1 - into;
  }
  return cudaSuccess;
}

template <typename T, int kPack>
cudaError_t LaunchRuns(const SortedTokens& tokens, const T* dy, int64_t width, float* borders,
                       float* gradient, cudaStream_t stream) noexcept {
  const int64_t packs = width / kPack;
  const int64_t threads = packs < kThreads ? (packs + kWarp - 1) / kWarp * kWarp : kThreads;
  const dim3 block(static_cast<unsigned>(threads));
  const dim3 grid(BlocksFor(tokens.count, kChunk), BlocksFor(packs, threads));
  const cudaError_t error = Launch(AddChunksKernel<T, kPack>, grid, block, 0, stream, tokens, dy,
                                   width, borders, gradient);
  if (error != cudaSuccess) return error;
  return Launch(AddBordersKernel<kPack>, grid, block, 0, stream, tokens, width, borders, gradient);
}

}  // namespace

EmbeddingScratch::EmbeddingScratch(void* memory, int64_t count, int64_t width) noexcept {
  const auto take = [&](int64_t bytes) {
    void* const part = memory == nullptr ? nullptr : static_cast<char*>(memory) + size_bytes;
    size_bytes += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    return part;
  };
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  for (TokenPlace*& part : places) {
    part = static_cast<TokenPlace*>(take(count * static_cast<int64_t>(sizeof(TokenPlace))));
  }
  digit_counts =
      static_cast<int32_t*>(take(TilesOf(count) * kDigits * static_cast<int64_t>(sizeof(int32_t))));
  borders = static_cast<float*>(take(chunks * 2 * width * static_cast<int64_t>(sizeof(float))));
}

template <typename T>
cudaError_t LaunchEmbedding(const EmbeddingForward<T>& call, cudaStream_t stream) noexcept {
  if (call.count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(call.width, {call.table, call.positions, call.y});
  const int64_t items = call.count * (packed ? call.width / kPackSize<T> : call.width);
  const int64_t wanted = (items + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks));
  return Launch(packed ? EmbeddingKernel<T, kPackSize<T>> : EmbeddingKernel<T, 1>, grid,
                dim3(kThreads), 0, stream, call);
}

template <typename T>
cudaError_t LaunchEmbeddingGradient(const int32_t* tokens, const T* dy, int64_t count,
                                    int64_t width, int64_t vocabulary,
                                    const EmbeddingScratch& scratch, float* gradient,
                                    cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  SortedTokens sorted = {nullptr, count};
  const cudaError_t error = LaunchSort(tokens, count, vocabulary, scratch, &sorted.places, stream);
  if (error != cudaSuccess) return error;
  return IsPacked<T>(width, {dy})
             ? LaunchRuns<T, kPackSize<T>>(sorted, dy, width, scratch.borders, gradient, stream)
             : LaunchRuns<T, 1>(sorted, dy, width, scratch.borders, gradient, stream);
}

template <typename T>
cudaError_t LaunchPositionGradient(const T* dy, int64_t count, int64_t length, int64_t width,
                                   float* gradient, cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(width, {dy});
  const int64_t pack = packed ? kPackSize<T> : 1;
  return Launch(packed ? PositionGradientKernel<T, kPackSize<T>> : PositionGradientKernel<T, 1>,
                dim3(BlocksFor(length * width, kThreads * pack)), dim3(kThreads), 0, stream, dy,
                count, length, width, gradient);
}

#define CUDA_OPS_INSTANTIATE(T)                                                            \
  template cudaError_t LaunchEmbedding(const EmbeddingForward<T>&, cudaStream_t) noexcept; \
  template cudaError_t LaunchEmbeddingGradient(const int32_t*, const T*, int64_t, int64_t, \
                                               int64_t, const EmbeddingScratch&, float*,   \
                                               cudaStream_t) noexcept;                     \
  template cudaError_t LaunchPositionGradient(const T*, int64_t, int64_t, int64_t, float*, \
                                              cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
