#include "kernels.h"

namespace engine::shm {

extern constexpr kit::KernelTable kKernelsAvx512 = kit::kReduceKernels;

}  // namespace engine::shm
