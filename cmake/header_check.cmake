# The target check_headers compiles each header of the product alone: it includes what it uses. Those beside a source of
# their name are compiled with that, which includes them first (scripts/check_includes.py).
set(folders interfaces core app tools bench plugins)
list(TRANSFORM folders APPEND "/*.h")
file(GLOB_RECURSE headers RELATIVE "${PROJECT_SOURCE_DIR}" ${folders})
# Not those that need CUDA; the loops of shm's kernels are compiled with the flags of those that include them.
list(FILTER headers EXCLUDE REGEX "^plugins/cuda_|shm/kernel_loops")
set(alone "")
foreach(header IN LISTS headers)
  cmake_path(REPLACE_EXTENSION header cc OUTPUT_VARIABLE own)
  if(NOT EXISTS "${PROJECT_SOURCE_DIR}/${own}")
    list(APPEND alone "${header}")
  endif()
endforeach()
set_source_files_properties(${alone} PROPERTIES LANGUAGE CXX
  COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:Clang>:-Wno-pragma-once-outside-header>;-Wno-unused")
add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${alone})
set_target_properties(check_headers PROPERTIES UNITY_BUILD OFF)
target_include_directories(check_headers PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/plugins"
  $<$<TARGET_EXISTS:engine_mpi>:$<TARGET_PROPERTY:engine_mpi,INCLUDE_DIRECTORIES>>)
target_link_libraries(check_headers PRIVATE engine_command engine_run engine_flags)
