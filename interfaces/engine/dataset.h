// Where samples come from. The order of the samples, the shares of the ranks, batches made ahead
// and augmentation are the engine's: a dataset says what a sample is and writes those it is asked
// for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "engine/abi/interface.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine {

// What the numbers of a tensor are, for what the engine itself does with samples.
enum class TensorContent : uint32_t {
  kNumbers = 0,
  kImage = 1,  // float32 (channels, rows, columns), normalised: `augment` moves and mirrors them
  kBytes = 2,  // int32 tokens that are the bytes of a text: a model of them can write text
};

// One tensor of a sample.
struct SampleTensor {
  TextView name = {};
  Shape shape = {};  // of one sample, without the batch dimension; a scalar has ndim 0
  DType dtype = DType::kFloat32;
  TensorContent content = TensorContent::kNumbers;
  int64_t classes = 0;  // classes > 0: int32 numbers in [0, classes); 0: any numbers
};
ENGINE_LAYOUT(SampleTensor, name, shape, dtype, content, classes);

// Names, tensors and digest are the dataset's and valid while it lives. There are an input and a
// sample to train on; tensors have names and extents, classes are of int32; what is known before
// Open stays true; a digest is visible characters.
struct DatasetInfo {
  uint64_t struct_size = sizeof(DatasetInfo);
  TextView name = {};  // for messages: "mnist images.gz"
  Array<const SampleTensor> inputs = {}, targets = {};
  int64_t train_samples = 0;
  int64_t held_out_samples = 0;  // to evaluate on; 0: none
  // Of the content that is trained on, the same on every rank that read the same; empty when
  // nothing is read. Ranks compare it before they train, and checkpoints keep it.
  TextView digest = {};
};
ENGINE_LAYOUT(DatasetInfo, struct_size, name, inputs, targets, train_samples, held_out_samples,
              digest);

// Samples have numbers of their own in each part; nothing trains on those of kHeldOut.
enum class Split : uint32_t { kTrain = 0, kHeldOut = 1 };

// Samples to write. tensors[t] is memory for (indices.size(), shape of tensor t), dense, inputs
// first and then targets.
struct FillCall {
  uint64_t struct_size = sizeof(FillCall);
  Split split = Split::kTrain;
  uint64_t epoch = 0;  // for what is random in a sample: another one may have another crop
  Span<const int64_t> indices = {};  // each in [0, samples of the split), in any order
  Span<void* const> tensors = {};
};
ENGINE_LAYOUT(FillCall, struct_size, split, epoch, indices, tensors);

// Its create function reads nothing: whether an option makes sense is checked there, files are read
// by Open.
ENGINE_INTERFACE(Dataset, Object, "engine.dataset.draft/1", info, Open, Fill);
class DatasetBase : public Implements<Dataset> {
 public:
  // Before Open what the options alone tell, without sizes and digest: no tensors where the content
  // says what they are like. After it everything. [any-thread]
  virtual DatasetInfo info() const noexcept = 0;

  // Reads what has to be read before samples can be made; called once. `seed` is that of the run.
  // kMissingInput or kBadData with the file and the place in it. [setup]
  virtual Status Open(uint64_t seed) noexcept = 0;

  // Straight into the memory of a batch: Fill writes the samples of `indices`, dense, and nothing
  // else; there may be none. What is written for an index depends on the options, the content, the
  // seed, the split and the epoch, and on nothing else: any rank may ask for any sample at any
  // time. kBadData with the file and the place in it. [any-thread]
  virtual Status Fill(const FillCall& call) const noexcept = 0;
};

// Random bits as a function of numbers, for what is random in a sample: without state, so any rank
// can make any sample at any time.
//
// A bijection of 64 bits in which each input bit changes about half of the output bits: the
// finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014).
constexpr uint64_t MixBits(uint64_t bits) noexcept {
  bits += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

constexpr uint64_t RandomBits(std::initializer_list<uint64_t> keys) noexcept {
  uint64_t bits = 0;
  for (uint64_t key : keys) bits = MixBits(bits ^ key);
  return bits;
}

}  // namespace engine
