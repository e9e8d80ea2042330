# Tests of the emulator itself.
emulated_cuda_compile(block_test.cu)
engine_add_test(NAME cuda_emulator LABELS emulated
  SOURCES block_test.cu
  LINK emulated_cudart)
target_include_directories(cuda_emulator PRIVATE "${PROJECT_SOURCE_DIR}/plugins/cuda_ops")
target_compile_options(cuda_emulator PRIVATE -O2)
