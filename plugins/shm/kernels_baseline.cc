#include "kernel_loops.h"

namespace engine::shm {

extern constexpr KernelTable kKernelsBaseline = kTable;

}  // namespace engine::shm
