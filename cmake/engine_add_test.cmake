# engine_add_test(NAME <name> [OPTIMISED] SOURCES <file>... [LINK <target>...] [LABELS <label>...] [TIMEOUT <seconds>]
#                 [PLUGINS <plugin target>...] [ENVIRONMENT <NAME=value>...])
#
# One GoogleTest binary = one ctest entry. The label defaults to `unit`. OPTIMISED: kernels are compiled into it.
# PLUGINS are built first, with all
# datasets and models; their folder is in the macro ENGINE_TEST_PLUGIN_DIR.

find_package(GTest REQUIRED)

# Tests are compiled more often than they run: they are optimised little.
set(test_options "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>")
engine_precompile(test "${test_options}" <gmock/gmock.h> <gtest/gtest.h> <algorithm> <atomic> <chrono> <cmath>
  <condition_variable> <cstdint> <cstdio> <cstdlib> <cstring> <filesystem> <fstream> <functional> <map> <memory> <mutex>
  <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
target_link_libraries(engine_precompiled_test PRIVATE GTest::gmock)

# OpenMP's threads sleep between two parts of an op: spinning, they took half the processor time of the tests of ops. The
# thread sanitizer does not see what ZeroMQ's and OpenMP's own code does, and took each message and each part of an op for a
# race.
set(test_environment OMP_WAIT_POLICY=passive)
if(ENGINE_SANITIZE MATCHES "address")
  # Else that of GCC up to 13 may read the size of a plugin's thread-local variables before them, where glibc has
  # nothing: the search for leaks crashed where a thread of OpenMP lived on.
  list(APPEND test_environment ASAN_OPTIONS=intercept_tls_get_addr=0)
endif()
if(ENGINE_SANITIZE STREQUAL "thread")
  file(WRITE "${CMAKE_BINARY_DIR}/tsan_suppressions.txt" "race:libzmq\nrace:libgomp\n")
  list(APPEND test_environment
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:history_size=7:suppressions=${CMAKE_BINARY_DIR}/tsan_suppressions.txt")
endif()

# engine_test_flags(<target>): as tests are compiled: eight files together, so that the names of a test are its own.
function(engine_test_flags target)
  target_link_libraries(${target} PRIVATE engine_flags engine::interfaces GTest::gmock)
  target_compile_options(${target} PRIVATE ${test_options})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${target} PRIVATE
    ENGINE_TEST_PLUGIN_DIR="${ENGINE_PLUGIN_OUTPUT_DIR}"
    ENGINE_TEST_BINARY="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/engine"
    ENGINE_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  engine_use_precompiled(${target} test)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
endfunction()

# engine_add_test_library(<name> SOURCES <file>... [LINK <target>...]): helpers of several tests.
function(engine_add_test_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ${arg_LINK})
  engine_test_flags(${name})
  # Only for executables, so that it can use the precompiled headers of those.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIE)
endfunction()

function(engine_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "OPTIMISED" "NAME;TIMEOUT" "SOURCES;LINK;LABELS;PLUGINS;ENVIRONMENT")
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LINK} engine_conform_kit GTest::gtest_main)
  engine_test_flags(${arg_NAME})
  if(arg_OPTIMISED)
    target_compile_options(${arg_NAME} PRIVATE -O2)
    set_target_properties(${arg_NAME} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endif()
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  if(arg_PLUGINS)
    add_dependencies(${arg_NAME} ${arg_PLUGINS} engine_data_and_models)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
  set_tests_properties(${arg_NAME} PROPERTIES ENVIRONMENT "${arg_ENVIRONMENT};${test_environment}")
endfunction()

# engine_slow_tests(<name> <filter>): what the GoogleTest filter, without '-', chooses of engine_add_test(<name>) runs as
# <name>_slow instead. For what waits for seconds by its nature, beside a test that shows the same in less.
function(engine_slow_tests name filter)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${filter}")
  add_test(NAME ${name}_slow COMMAND ${name} "--gtest_filter=${filter}")
  set_tests_properties(${name}_slow PROPERTIES LABELS slow TIMEOUT 120 ENVIRONMENT "${test_environment}")
endfunction()

# engine_add_conform(<test> <plugin> [LEVEL must|should] [<argument of engine conform>...]): a plugin of this repository
# is judged, by `should` where no level is given.
function(engine_add_conform name plugin)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" LEVEL "")
  if(NOT arg_LEVEL)
    set(arg_LEVEL should)
  endif()
  if(TARGET engine_${plugin} AND TARGET engine_conform)
    add_test(NAME conform_${name} COMMAND engine_conform $<TARGET_FILE:engine_${plugin}> --level ${arg_LEVEL}
                                          ${arg_UNPARSED_ARGUMENTS})
    set_tests_properties(conform_${name} PROPERTIES LABELS conformance TIMEOUT 120 ENVIRONMENT "${test_environment}")
  endif()
endfunction()
