#include <cub/device/device_radix_sort.cuh>

#include "kernels/embedding.h"
#include "kernels/packs.h"

namespace engine::cuda_ops {
namespace {

constexpr int kChunk = 64;  // sorted tokens whose rows a block adds up
constexpr int64_t kScratchAlignment = 256;

__device__ int32_t ClampToken(int32_t token, int64_t vocabulary) {
  return token >= 0 && token < vocabulary ? token : 0;
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
    Pack<T, kPack> row = LoadPack<kPack>(call.table + token * call.width + column);
    if (call.positions != nullptr) {
      const auto position =
          LoadPack<kPack>(call.positions + place % call.length * call.width + column);
      for (int j = 0; j < kPack; ++j) {
        row.at[j] = FromFloat<T>(ToFloat(row.at[j]) + ToFloat(position.at[j]));
      }
    }
    StorePack(call.y + place * call.width + column, row);
  }
}

// What is sorted: each token and where it is.
__global__ void PlacesKernel(const int32_t* given, int64_t vocabulary, int32_t* tokens,
                             int32_t* places, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  tokens[i] = ClampToken(given[i], vocabulary);
  places[i] = static_cast<int32_t>(i);
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
  const int32_t* tokens;
  const int32_t* places;
  int64_t count;

  __device__ int64_t Begin(int64_t chunk) const { return chunk * kChunk; }
  __device__ int64_t End(int64_t chunk) const {
    return Begin(chunk + 1) < count ? Begin(chunk + 1) : count;
  }
  // Whether the first (last) token of the chunk is also in the chunk before (behind).
  __device__ bool ContinuesFrom(int64_t chunk) const {
    const int64_t i = Begin(chunk);
    return i > 0 && tokens[i] == tokens[i - 1];
  }
  __device__ bool ContinuesInto(int64_t chunk) const {
    const int64_t i = End(chunk);
    return i < count && tokens[i] == tokens[i - 1];
  }
};

// Block (x, y): chunk x, columns from y * kThreads packs on. A run that is all in the chunk is
// added to its row; the sum of one that began before is border 0, of one that goes on (alone)
// border 1.
template <typename T, int kPack>
__global__ void AddChunksKernel(const SortedTokens sorted, const T* dy, int64_t width,
                                float* borders, float* gradient) {
  const int64_t chunk = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
  if (column >= width) return;
  const int64_t end = sorted.End(chunk);
  float* const border = borders + chunk * 2 * width + column;
  bool first = sorted.ContinuesFrom(chunk);
  const bool last = sorted.ContinuesInto(chunk);
  PackSum<kPack> sum;
  for (int64_t i = sorted.Begin(chunk); i < end; ++i) {
    const int32_t token = sorted.tokens[i];
    const auto row = LoadPack<kPack>(dy + sorted.places[i] * width + column);
    for (int j = 0; j < kPack; ++j) sum.at[j] += ToFloat(row.at[j]);
    const bool ends = i + 1 == end;
    if (!ends && sorted.tokens[i + 1] == token) continue;
    if (first) {
      sum.Store(border);
    } else if (ends && last) {
      sum.Store(border + width);
    } else {
      sum.AddTo(gradient + token * width + column);
    }
    first = false;
    sum = {};
  }
}

// Block (x, y) as above: adds up the run that begins in chunk x and goes on.
template <int kPack>
__global__ void AddBordersKernel(const SortedTokens sorted, int64_t width, const float* borders,
                                 float* gradient) {
  int64_t chunk = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
  const int32_t token = sorted.tokens[sorted.End(chunk) - 1];
  const bool all_one = sorted.tokens[sorted.Begin(chunk)] == token;
  // A run that fills the chunk and began before it is added up by the chunk of its beginning.
  if (column >= width || !sorted.ContinuesInto(chunk) || (all_one && sorted.ContinuesFrom(chunk))) {
    return;
  }
  PackSum<kPack> sum;
  sum.Add(borders + (chunk * 2 + 1) * width + column);
  bool goes_on = true;
  while (goes_on) {
    ++chunk;
    sum.Add(borders + chunk * 2 * width + column);
    goes_on = sorted.tokens[sorted.End(chunk) - 1] == token && sorted.ContinuesInto(chunk);
  }
  sum.AddTo(gradient + token * width + column);
}

// A thread for each of `count` packs of the gradient.
template <int kPack, typename T>
__global__ void PositionGradientKernel(const T* dy, int64_t samples, float* gradient,
                                       int64_t count) {
  const int64_t i = ThreadIndex(), size = count * kPack;
  if (i >= count) return;
  PackSum<kPack> sum;
#pragma unroll 4
  for (int64_t sample = 0; sample < samples; ++sample) {
    const auto row = LoadPack<kPack>(dy + sample * size + i * kPack);
    for (int j = 0; j < kPack; ++j) sum.at[j] += ToFloat(row.at[j]);
  }
  sum.AddTo(gradient + i * kPack);
}

// By token, and then by place. Without `memory`, *bytes becomes what is needed.
cudaError_t Sort(void* memory, size_t* bytes, cub::DoubleBuffer<int32_t>* tokens,
                 cub::DoubleBuffer<int32_t>* places, int64_t count, int64_t vocabulary,
                 cudaStream_t stream) noexcept {
  int bits = 1;
  while ((vocabulary - 1) >> bits > 0) ++bits;
  (void)cudaGetLastError();  // CUB would take what a query left there (not ready) for its own
  return cub::DeviceRadixSort::SortPairs(memory, *bytes, *tokens, *places, static_cast<int>(count),
                                         0, bits, stream);
}

template <typename T, int kPack>
cudaError_t LaunchRuns(const SortedTokens& sorted, const T* dy, int64_t width, float* borders,
                       float* gradient, cudaStream_t stream) noexcept {
  const int64_t packs = width / kPack;
  const int64_t threads = packs < kThreads ? (packs + kWarp - 1) / kWarp * kWarp : kThreads;
  const dim3 block(static_cast<unsigned>(threads));
  const dim3 grid(BlocksFor(sorted.count, kChunk), BlocksFor(packs, threads));
  const cudaError_t error = Launch(AddChunksKernel<T, kPack>, grid, block, 0, stream, sorted, dy,
                                   width, borders, gradient);
  if (error != cudaSuccess) return error;
  return Launch(AddBordersKernel<kPack>, grid, block, 0, stream, sorted, width, borders, gradient);
}

}  // namespace

EmbeddingScratch::EmbeddingScratch(void* memory, int64_t count, int64_t width,
                                   int64_t vocabulary) noexcept {
  const auto take = [&](int64_t bytes) {
    void* const part = memory == nullptr ? nullptr : static_cast<char*>(memory) + size_bytes;
    size_bytes += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    return part;
  };
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  for (int32_t** part : {&tokens[0], &tokens[1], &places[0], &places[1]}) {
    *part = static_cast<int32_t*>(take(count * static_cast<int64_t>(sizeof(int32_t))));
  }
  borders = static_cast<float*>(take(chunks * 2 * width * static_cast<int64_t>(sizeof(float))));
  cub::DoubleBuffer<int32_t> none(nullptr, nullptr);
  error = Sort(nullptr, &sort_bytes, &none, &none, count, vocabulary, nullptr);
  sort = take(static_cast<int64_t>(sort_bytes));
}

template <typename T>
cudaError_t LaunchEmbedding(const EmbeddingForward<T>& call, cudaStream_t stream) noexcept {
  if (call.count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(call.width, {call.table, call.positions, call.y});
  const int64_t items = call.count * (packed ? call.width / kPackSize<T> : call.width);
  return Launch(packed ? EmbeddingKernel<T, kPackSize<T>> : EmbeddingKernel<T, 1>,
                dim3(StridingBlocksFor(items, kThreads)), dim3(kThreads), 0, stream, call);
}

template <typename T>
cudaError_t LaunchEmbeddingGradient(const int32_t* tokens, const T* dy, int64_t count,
                                    int64_t width, int64_t vocabulary,
                                    const EmbeddingScratch& scratch, float* gradient,
                                    cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  cudaError_t error = ForEach(count, PlacesKernel, stream, tokens, vocabulary, scratch.tokens[0],
                              scratch.places[0]);
  if (error != cudaSuccess) return error;
  cub::DoubleBuffer<int32_t> sorted_tokens(scratch.tokens[0], scratch.tokens[1]);
  cub::DoubleBuffer<int32_t> places(scratch.places[0], scratch.places[1]);
  size_t bytes = scratch.sort_bytes;
  error = Sort(scratch.sort, &bytes, &sorted_tokens, &places, count, vocabulary, stream);
  if (error != cudaSuccess) return error;
  const SortedTokens sorted = {sorted_tokens.Current(), places.Current(), count};
  return IsPacked<T>(width, {dy})
             ? LaunchRuns<T, kPackSize<T>>(sorted, dy, width, scratch.borders, gradient, stream)
             : LaunchRuns<T, 1>(sorted, dy, width, scratch.borders, gradient, stream);
}

template <typename T>
cudaError_t LaunchPositionGradient(const T* dy, int64_t count, int64_t length, int64_t width,
                                   float* gradient, cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  return WithPackSize<T>(width, {dy}, [&](auto pack) {
    constexpr int kPack = decltype(pack)::value;
    return ForEach(length * width / kPack, PositionGradientKernel<kPack, T>, stream, dy,
                   count / length, gradient);
  });
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
