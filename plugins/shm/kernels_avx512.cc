// Compiled with -mavx512f and its like (CMakeLists.txt): nothing may be in here but the loops of
// the kit, which have internal linkage, or the linker could give these instructions to other files.
#include "kernels.h"

namespace engine::shm {

extern constexpr kit::KernelTable kKernelsAvx512 = kit::kReduceKernels;

}  // namespace engine::shm
