#include "kernel_loops.h"

namespace engine::shm {

extern constexpr KernelTable kKernelsAvx2 = kTable;

}  // namespace engine::shm
