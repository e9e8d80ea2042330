# engine_precompile(<set> <options> <header>...): what many files include is read once, not by each of them.
# engine_use_precompiled(<target> <set>): the files of the target begin with the headers of that set.
#
# A set holds headers of the system only, which do not change; one whose flags differ from those of a target cannot be
# used by it (GCC says so: -Winvalid-pch). Configured with CMAKE_DISABLE_PRECOMPILE_HEADERS=ON there is none, and a
# file that forgets an include does not compile: scripts/lint.sh builds so.

function(engine_precompile set options)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/precompiled.cc" CONTENT "")
  # An executable where executables use it: those are compiled with -fPIE, libraries with -fPIC.
  if(set STREQUAL "test")
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/precompiled_main.cc" CONTENT "int main() {}\n")
    add_executable(engine_precompiled_${set} EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/generated/precompiled_main.cc")
  else()
    add_library(engine_precompiled_${set} OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/generated/precompiled.cc")
  endif()
  target_link_libraries(engine_precompiled_${set} PRIVATE engine_flags)
  target_compile_options(engine_precompiled_${set} PRIVATE ${options})
  target_precompile_headers(engine_precompiled_${set} PRIVATE ${ARGN})
endfunction()

function(engine_use_precompiled target set)
  if(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
    target_precompile_headers(${target} REUSE_FROM engine_precompiled_${set})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # -fpch-preprocess: without it ccache cannot cache these files. The warnings are those of GCC 12 about its own
      # std::string, known to be wrong, which it takes for ours when the header is precompiled.
      target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
        -Wno-stringop-overread)
    endif()
  endif()
endfunction()

# engine_command_line(<target>): its files include CLI11. To optimise that takes longer than all of core, and flags are
# parsed fast enough without.
function(engine_command_line target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()
