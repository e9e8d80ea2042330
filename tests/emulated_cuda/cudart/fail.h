// The end of a process that broke a rule of CUDA which no error code tells.
#pragma once

namespace emulated_cuda {

// Writes "emulated CUDA: <sentence>" to standard error and aborts.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...);

}  // namespace emulated_cuda
