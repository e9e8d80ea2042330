# Tests of the emulator itself. The language is tested in two orders.
emulated_cuda_compile(access_test.cu language_test.cu mma_test.cu)
engine_add_test(NAME cuda_emulator OPTIMISED LABELS emulated
  SOURCES language_test.cu mma_test.cu runtime_test.cc cublaslt_test.cc
  LINK emulated_cudart emulated_cublaslt)
add_test(NAME cuda_emulator_down COMMAND cuda_emulator "--gtest_filter=EmulatedLanguage.*:EmulatedMma.*")
set_tests_properties(cuda_emulator_down PROPERTIES
  LABELS emulated TIMEOUT 120 ENVIRONMENT "EMULATED_CUDA_ORDER=descending")

# A binary of its own: the functions of a template are either checked everywhere or nowhere in a library.
engine_add_test(NAME cuda_emulator_access OPTIMISED LABELS emulated
  SOURCES access_test.cu
  LINK emulated_cudart)
set_property(SOURCE access_test.cu APPEND PROPERTY COMPILE_OPTIONS ${EMULATED_CUDA_CHECKED})

foreach(test cuda_emulator cuda_emulator_access)
  target_include_directories(${test} PRIVATE "${PROJECT_SOURCE_DIR}/plugins/cuda_ops")
endforeach()
