// Runs one op on given values, in memory of its device, the way the core does, and watches what
// the op does to that memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/op.h"
#include "tools/conform/ops/device_memory.h"

namespace engine::conform {

using Values = std::vector<double>;

// Integers are held as doubles too.
struct Tensor {
  TensorSpec spec;
  Values values;

  const Shape& shape() const { return spec.shape; }
  int64_t rows() const { return spec.shape.Count(0, -1); }  // all dimensions but the last
  int64_t width() const { return spec.shape[-1]; }
};

struct MadeOp {
  std::unique_ptr<Op> op;
  OpSignature signature;
  size_t data_inputs = 0;
  uint32_t parameters = 0;       // bit i: data input i is a parameter of another op
  bool always_in_place = false;  // the core only calls it with its output in input 0: "accumulate"

  size_t inputs() const { return data_inputs + static_cast<size_t>(signature.parameter_count); }
  bool differentiable(size_t input) const {
    return (signature.differentiable_inputs >> input & 1) != 0;
  }
  // Statistics that Forward itself changes.
  bool is_buffer(size_t input) const {
    return input >= data_inputs && signature.parameters[input - data_inputs].trained == 0;
  }
};

// Inputs (data, then parameters) of some samples, and gradients of the outputs. Values are such as
// their dtype holds exactly.
struct Problem {
  int64_t samples = 0;
  std::vector<Tensor> inputs;
  std::vector<Tensor> output_gradients;

  // One behind the other, as a ReferenceOp takes them.
  Values AllGradients() const;
};

// `spec`, of `full` samples, for as many as `samples`.
TensorSpec WithSamples(TensorSpec spec, int64_t full, int64_t samples);

// A part of a problem: samples [begin, end) of its batched tensors.
Problem PartOf(const Problem& problem, int64_t begin, int64_t end);

// What random numbers of an op are a function of, besides the position in a sample.
struct RandomKey {
  uint64_t seed = 17;
  uint64_t step = 3;
  uint64_t node = 5;
  uint64_t first_sample = 11;
};

struct RunOptions {
  uint32_t wanted = ~0u;           // inputs whose gradient is asked for
  uint32_t accumulate = 0;         // inputs whose gradient is added to Before()
  bool in_place = false;           // output in the memory of the input that the signature names
  bool share_gradient = false;     // input gradients that may, in the memory of the output's, and
                                   // equal ones in one memory
  bool gradient_in_place = false;  // input gradients that may, in the memory of the input
  bool hide_undeclared = false;    // poison in what Backward does not say that it reads
  bool training = true;            // else Forward alone, in evaluation
  bool backward = true;            // false: Forward alone, in training
  uint32_t missing = 0;            // bit i: no gradient arrives at output i
  RandomKey random;
  Replicas* replicas = nullptr;
  std::byte poison{0xff};  // in memory that is not written yet; four 0xff are a NaN, and -1
};

struct RunResult {
  Status status;
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<float>> gradients;  // one per input; empty where none, and in evaluation
  // Those of the op and of other ops among its inputs, after Forward.
  std::vector<std::vector<float>> parameters;
  std::vector<std::string> overruns;  // "Forward wrote beside output 0"
  std::vector<std::string> changes;   // "Backward changed input 1"
  uint64_t allocated_bytes = 0;       // by operator new, on this thread, in all calls

  std::vector<float> AllOutputs() const;
};

// One Forward, and the Backward that belongs to it.
class OpRun {
 public:
  OpRun(Device* device, MadeOp& op, const Problem& problem, const RunOptions& options = {});
  ~OpRun();
  OpRun(const OpRun&) = delete;

  // Neither does anything after an error.
  void Forward();
  void Backward();
  RunResult& result();

 private:
  class State;
  const std::unique_ptr<State> state_;
};

// Forward, then Backward unless the options say otherwise.
RunResult RunOp(Device* device, MadeOp& op, const Problem& problem, const RunOptions& options = {});

// What gradient memory holds before a call: element i.
inline float Before(size_t i) {
  return 0.25f * static_cast<float>(i % 5) - 0.5f;
}

}  // namespace engine::conform
