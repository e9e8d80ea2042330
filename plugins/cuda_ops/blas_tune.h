// The choice of an algorithm by time, and the file that keeps it, so that a shape is measured once
// for a device and a version of cuBLASLt and runs repeat to the bit from then on.
//
//   file = header LF { (line | header) LF }
//   header = "engine cuda_ops tune 1"
//   line = key " =" word{8} check          words and check: " " and 16 hexadecimal digits
//
// `key` is device, library and shape as text; the words are those of a cublasLtMatmulAlgo_t, which
// cublasLt.h allows to keep for the same version; `check` is a hash of the line before it. Of
// several lines with one key the first counts. Each is appended by one write(), so that ranks need
// no lock: whoever has appended a line reads the file again and takes the first. Damaged lines are
// skipped, and what does not begin with the header is left alone.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "cuda_device.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::cuda_ops {

class TuneFile {
 public:
  // With an empty `path` nothing is kept. `host` gets sentences about the file; null: nobody does.
  TuneFile(std::string path, Host* host) noexcept : path_(std::move(path)), host_(host) {}

  // Whether the file has a choice for `key`, which is then in *out.
  bool Find(std::string_view key, cublasLtMatmulAlgo_t* out) noexcept;

  // Adds a choice, for which Find had none. When another rank was first, *choice becomes its
  // choice.
  void Keep(std::string_view key, cublasLtMatmulAlgo_t* choice) noexcept;

 private:
  void Say(LogLevel level, const char* what) noexcept;

  std::string path_;
  Host* const host_;
  std::string prefix_;  // of what is appended next: a header, or the end of a torn line
  bool said_damaged_ = false;
  bool said_measuring_ = false;
};

// *fastest = which of `count` candidates takes the least time; run(i) queues candidate i on
// `stream`, and one that returns an error is left out. The first, if none runs. Waits for the
// stream.
Status FindFastest(CudaDevice& device, cudaStream_t stream, size_t count,
                   const std::function<Status(size_t)>& run, size_t* fastest) noexcept;

}  // namespace engine::cuda_ops
