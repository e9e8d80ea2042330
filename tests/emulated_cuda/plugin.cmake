# The plugin cuda_ops a second time, for the host, and the suite of all op libraries on it.
include("${PROJECT_SOURCE_DIR}/plugins/cuda_ops/sources.cmake")
set(cuda_ops_dir "${PROJECT_SOURCE_DIR}/plugins/cuda_ops")
list(REMOVE_ITEM CUDA_OPS_HOST_SOURCES cudnn_library.cc cudnn_plan.cc)  # evaluated_plan.cc instead
list(TRANSFORM CUDA_OPS_HOST_SOURCES PREPEND "${cuda_ops_dir}/")
set(cudnn_dir "${PROJECT_SOURCE_DIR}/tests/cuda_build/cudnn")
list(APPEND CUDA_OPS_HOST_SOURCES "${cudnn_dir}/evaluate_graph.cc" "${cudnn_dir}/evaluated_plan.cc")
list(TRANSFORM CUDA_OPS_KERNEL_SOURCES PREPEND "${cuda_ops_dir}/")
emulated_cuda_compile(${CUDA_OPS_KERNEL_SOURCES})
set(ENGINE_ABI_MAJOR 0)
configure_file("${PROJECT_SOURCE_DIR}/cmake/plugin.map.in" "${CMAKE_CURRENT_BINARY_DIR}/plugin.map" @ONLY)

# emulated_cuda_objects(<target> <file>...): sources of the plugin, compiled.
function(emulated_cuda_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE "${cuda_ops_dir}" "${PROJECT_SOURCE_DIR}/plugins" "${PROJECT_SOURCE_DIR}")
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${ENGINE_CUDNN_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE engine_flags engine::interfaces)
  target_compile_options(${target} PRIVATE -O2 -fno-gnu-unique)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# emulated_cuda_plugin(<target> <folder> <objects>...)
# Not by engine_add_plugin: it must be neither installed nor taken for the plugin.
function(emulated_cuda_plugin target folder)
  add_library(${target} MODULE)
  target_link_libraries(${target} PRIVATE ${ARGN} emulated_cudart emulated_cublaslt ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE
    "-Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/plugin.map" -Wl,--exclude-libs,ALL -Wl,-z,defs)
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME engine_cuda_ops PREFIX "lib" LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY "${folder}" BUILD_RPATH "${EMULATED_CUDA_LIBRARY_DIR}")
endfunction()

emulated_cuda_objects(cuda_ops_host ${CUDA_OPS_HOST_SOURCES})
emulated_cuda_objects(cuda_ops_kernels ${CUDA_OPS_KERNEL_SOURCES})
emulated_cuda_plugin(engine_cuda_ops_emulated "${EMULATED_CUDA_PLUGIN_DIR}" cuda_ops_host cuda_ops_kernels)
# The compiler calls a function for every access to memory, which is the emulator's and looks for races: no library of
# a sanitizer is linked.
emulated_cuda_objects(cuda_ops_checked_kernels ${CUDA_OPS_KERNEL_SOURCES})
target_compile_options(cuda_ops_checked_kernels PRIVATE ${EMULATED_CUDA_CHECKED})
set_target_properties(cuda_ops_checked_kernels PROPERTIES EXCLUDE_FROM_ALL ON)
emulated_cuda_plugin(engine_cuda_ops_checked "${EMULATED_CUDA_PLUGIN_DIR}/checked" cuda_ops_host cuda_ops_checked_kernels)
# Takes longer to compile than all the rest of this folder: built when a test asks for it.
set_target_properties(engine_cuda_ops_checked PROPERTIES EXCLUDE_FROM_ALL ON)
add_test(NAME build_checked_kernels COMMAND ${CMAKE_COMMAND} --build "${CMAKE_BINARY_DIR}" -j2
  --target engine_cuda_ops_checked cuda_attention_checked)
set_tests_properties(build_checked_kernels PROPERTIES LABELS slow TIMEOUT 1200 RUN_SERIAL ON FIXTURES_SETUP checked_kernels)

if(NOT TARGET ops_conformance)
  return()
endif()
# All cases take minutes; `emulated` are those of the formulas, without the largest sizes.
set(formulas "*MatchesTheFormula/*:*OpNumerics*:-*large*")
foreach(direction up down)
  add_test(NAME cuda_ops_emulated_${direction} COMMAND ops_conformance "--gtest_filter=${formulas}")
  add_test(NAME cuda_ops_emulated_all_${direction} COMMAND ops_conformance)
  set(order ascending)
  if(direction STREQUAL "down")
    set(order descending)
  endif()
  set_tests_properties(cuda_ops_emulated_${direction} cuda_ops_emulated_all_${direction} PROPERTIES
    LABELS emulated TIMEOUT 1800
    ENVIRONMENT "LD_LIBRARY_PATH=${EMULATED_CUDA_LIBRARY_DIR};ENGINE_CONFORMANCE_PLUGINS=$<TARGET_FILE:engine_cuda_ops_emulated>;EMULATED_CUDA_ORDER=${order}")
  set_tests_properties(cuda_ops_emulated_all_${direction} PROPERTIES LABELS exhaustive)
endforeach()
foreach(precision float32 bf16)
  string(REPLACE bf16 bfloat16 type ${precision})
  engine_op_inputs(${type} inputs)
  add_test(NAME conform_cuda_ops_emulated_${precision} COMMAND engine_conform $<TARGET_FILE:engine_cuda_ops_emulated>
    --set tune=off --set precision=${precision} ${inputs})
  set_tests_properties(conform_cuda_ops_emulated_${precision} PROPERTIES LABELS emulated TIMEOUT 1200
    ENVIRONMENT "LD_LIBRARY_PATH=${EMULATED_CUDA_LIBRARY_DIR}")
endforeach()
# In bfloat16 the layers of gpt are products alone: GELU, its gradient and those of biases are in their epilogues. So they
# do without any kernel.
add_test(NAME cuda_ops_products_alone COMMAND ops_conformance
  "--gtest_filter=*.MatchesTheFormula/*_linear_units_16_bfloat16_5_8__run_in_bf16:*.MatchesTheFormula/*_mlp_units_16_bfloat16_5_8__run_in_bf16")
set_tests_properties(cuda_ops_products_alone PROPERTIES
  LABELS emulated TIMEOUT 120 PASS_REGULAR_EXPRESSION "PASSED  . 2 tests"
  ENVIRONMENT "LD_LIBRARY_PATH=${EMULATED_CUDA_LIBRARY_DIR};ENGINE_CONFORMANCE_PLUGINS=$<TARGET_FILE:engine_cuda_ops_emulated>;EMULATED_CUDA_FAULT=cudaLaunchKernel:1+=98")
add_test(NAME cuda_ops_checked COMMAND ops_conformance "--gtest_filter=${formulas}")
set_tests_properties(cuda_ops_checked PROPERTIES LABELS slow TIMEOUT 900 FIXTURES_REQUIRED checked_kernels
  ENVIRONMENT "LD_LIBRARY_PATH=${EMULATED_CUDA_LIBRARY_DIR};ENGINE_CONFORMANCE_PLUGINS=$<TARGET_FILE:engine_cuda_ops_checked>")
