// Runs one op of a library on given values, in memory of the library's device, the way the core
// would, and watches what the op does to that memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/ops/op_cases.h"
#include "tests/conformance/ops/reference_ops.h"
#include "tests/conformance/plugin_under_test.h"

namespace engine::test {

class ReplicaThreads;

// Memory of a device with a guard behind it. Starts as NaN, in guard and content.
class DeviceMemory {
 public:
  DeviceMemory(Device* device, size_t size_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  void Poison();
  void Write(const void* source, size_t size_bytes);
  std::vector<std::byte> Read() const;
  bool guard_intact() const;

 private:
  std::vector<std::byte> ReadAll() const;

  Device* const device_;
  const size_t size_bytes_;
  void* data_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

// A library with its root object.
struct LoadedOps {
  PluginUnderTest plugin;
  std::shared_ptr<MemoryHost> host;
  std::shared_ptr<OpLibrary> library;

  struct Settings {
    int threads = 1;  // of one op, where the plugin has such an option
    DType activation =
        DType::kFloat32;  // or kBFloat16, where the plugin has the option "precision"
    bool tune = false;    // measures, where it can
  };

  static LoadedOps Load(const std::string& path, const Settings& settings);
  static LoadedOps Load(const std::string& path, int threads) {
    return Load(path, Settings{.threads = threads});
  }
};

// Whether the library can also run in bfloat16.
bool HasBFloat16(const PluginUnderTest& plugin);

struct MadeOp {
  std::unique_ptr<Op> op;
  OpSignature signature;
};

Result<MadeOp> MakeOp(const LoadedOps& ops, const std::string& name,
                      const OptionValues::Overrides& attributes, Array<const TensorSpec> inputs);

MadeOp MakeOp(const LoadedOps& ops, const OpCase& op_case);  // an error fails the test

// Inputs (data, then parameters) for `samples` of a case's full batch, and gradients of the
// outputs. Values are such as their dtype holds exactly.
struct Problem {
  std::vector<Tensor> inputs;
  std::vector<Tensor> output_gradients;

  // One behind the other, as a ReferenceOp takes them.
  Values AllGradients() const;
};

Problem MakeProblem(const OpCase& op_case, const OpSignature& signature, int64_t samples,
                    uint64_t seed);

// A part of a problem: samples [begin, end) of its batched tensors.
Problem PartOf(const Problem& problem, int64_t begin, int64_t end);

struct RunOptions {
  uint32_t wanted = ~0u;           // inputs whose gradient is asked for
  uint32_t accumulate = 0;         // inputs whose gradient is added to Before()
  bool in_place = false;           // output in the memory of the input that the signature names
  bool share_gradient = false;     // input gradients that may, in the memory of the output's, and
                                   // equal ones in one memory
  bool gradient_in_place = false;  // input gradients that may, in the memory of the input
  bool hide_undeclared = false;    // NaN in what Backward does not say that it reads
  bool training = true;            // else Forward alone, in evaluation
  uint32_t missing = 0;            // bit i: no gradient arrives at output i
  RandomKey random;
  Replicas* replicas = nullptr;
};

struct RunResult {
  Status status;
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<float>> gradients;  // one per input; empty where none, and in evaluation
  // Those of the op and of other ops among its inputs, after Forward.
  std::vector<std::vector<float>> parameters;
  bool guards_intact = true;

  std::vector<float> AllOutputs() const;
};

// Forward, then Backward unless it is an evaluation.
RunResult RunOp(const LoadedOps& ops, MadeOp& made, const OpCase& op_case, const Problem& problem,
                const RunOptions& options = {});

// The same where nothing may go wrong.
RunResult RunChecked(const LoadedOps& ops, MadeOp& made, const OpCase& op_case,
                     const Problem& problem, const RunOptions& options = {});

// Ranks that are threads, each with a library of its own and the samples [cuts[r], cuts[r + 1]).
std::vector<RunResult> RunParts(const std::function<LoadedOps()>& load, const OpCase& op_case,
                                const Problem& problem, const std::vector<int64_t>& cuts,
                                ReplicaThreads* replicas, bool training = true);

// `relative` is to the largest wanted value.
void ExpectNear(const std::vector<float>& got, const Values& want, double relative,
                const std::string& what, double absolute = 0);

// What gradient memory holds before a call: element i.
inline float Before(size_t i) {
  return 0.25f * static_cast<float>(i % 5) - 0.5f;
}

}  // namespace engine::test
