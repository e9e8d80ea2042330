# The files of cuda_ops: also compiled by tests/emulated_cuda, kernels as C++.
set(CUDA_OPS_HOST_SOURCES
  cuda_device.cc
  cuda_error.cc
  cuda_flat_math.cc
  cuda_op.cc
  plugin.cc
  staging.cc)
set(CUDA_OPS_KERNEL_SOURCES
  kernels/flat_math.cu)
