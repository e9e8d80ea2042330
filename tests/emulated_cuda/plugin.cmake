# The plugin cuda_ops a second time, for the host.
include("${PROJECT_SOURCE_DIR}/plugins/cuda_ops/sources.cmake")
set(cuda_ops_dir "${PROJECT_SOURCE_DIR}/plugins/cuda_ops")
list(TRANSFORM CUDA_OPS_HOST_SOURCES PREPEND "${cuda_ops_dir}/")
list(TRANSFORM CUDA_OPS_KERNEL_SOURCES PREPEND "${cuda_ops_dir}/")
emulated_cuda_compile(${CUDA_OPS_KERNEL_SOURCES})

set(ENGINE_ABI_MAJOR 1)
configure_file("${PROJECT_SOURCE_DIR}/cmake/plugin.map.in" "${CMAKE_CURRENT_BINARY_DIR}/plugin.map" @ONLY)
add_library(engine_cuda_ops_emulated MODULE EXCLUDE_FROM_ALL ${CUDA_OPS_HOST_SOURCES} ${CUDA_OPS_KERNEL_SOURCES})
target_include_directories(engine_cuda_ops_emulated PRIVATE "${cuda_ops_dir}" "${PROJECT_SOURCE_DIR}")
target_include_directories(engine_cuda_ops_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${ENGINE_CUDNN_INCLUDE_DIR})
target_link_libraries(engine_cuda_ops_emulated PRIVATE engine_flags engine::interfaces emulated_cudart)
foreach(fake emulated_cublaslt emulated_cudnn)
  if(TARGET ${fake})
    target_link_libraries(engine_cuda_ops_emulated PRIVATE ${fake})
  endif()
endforeach()
target_compile_options(engine_cuda_ops_emulated PRIVATE -O2 -fno-gnu-unique)
target_link_options(engine_cuda_ops_emulated PRIVATE
  "-Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/plugin.map" -Wl,--exclude-libs,ALL -Wl,-z,defs)
set_target_properties(engine_cuda_ops_emulated PROPERTIES
  OUTPUT_NAME engine_cuda_ops PREFIX "lib"
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LIBRARY_OUTPUT_DIRECTORY "${EMULATED_CUDA_PLUGIN_DIR}"
  BUILD_RPATH "${EMULATED_CUDA_LIBRARY_DIR}")
