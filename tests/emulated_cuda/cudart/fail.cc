#include "tests/emulated_cuda/cudart/fail.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace emulated_cuda {

void Fail(const char* format, ...) {
  std::fputs("emulated CUDA: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace emulated_cuda
