#include "kernels.h"

namespace engine::shm {

extern constexpr kit::KernelTable kKernelsAvx2 = kit::kReduceKernels;

}  // namespace engine::shm
