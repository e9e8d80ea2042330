#include "kernel_loops.h"

namespace engine::shm {

extern constexpr KernelTable kKernelsAvx512 = kTable;

}  // namespace engine::shm
