# CUDA, if it is there. Sets ENGINE_CUDA to whether plugins that need it are built.
#
# Never links libcuda: a plugin that needs it cannot be loaded on a machine without a driver.

option(ENGINE_WITH_CUDA "Build the CUDA plugins where the toolkit is found" ON)
set(ENGINE_CUDA OFF)
if(NOT ENGINE_WITH_CUDA)
  message(STATUS "CUDA: left out (ENGINE_WITH_CUDA is OFF)")
  return()
endif()
find_package(CUDAToolkit 12.4 QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(STATUS "CUDA: no toolkit of version 12.4 or later; plugins cuda_ops and nccl are left out")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
endif()
# Before the language is enabled, or CMake takes the compiler's default.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING "GPU architectures to build for")
endif()
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
endif()
enable_language(CUDA)
# CMake 3.25 knows no C++20 for CUDA.
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_path(ENGINE_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(ENGINE_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
set(ENGINE_CUDA ON)
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
