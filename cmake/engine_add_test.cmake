# engine_add_test(NAME <name> SOURCES <file>... [LINK <target>...] [LABELS <label>...] [TIMEOUT <seconds>]
#                 [PLUGINS <plugin target>...] [ENVIRONMENT <NAME=value>...])
#
# One GoogleTest binary = one ctest entry. The label defaults to `unit`. PLUGINS are built first, with all datasets and
# models; their folder is in the macro ENGINE_TEST_PLUGIN_DIR.

find_package(GTest REQUIRED)

# Tests are compiled more often than they run: they are optimised little.
set(test_options "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>")
engine_precompile(test "${test_options}" <gmock/gmock.h> <gtest/gtest.h> <algorithm> <atomic> <chrono> <cmath>
  <condition_variable> <cstdint> <cstdio> <cstdlib> <cstring> <filesystem> <fstream> <functional> <map> <memory> <mutex>
  <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
target_link_libraries(engine_precompiled_test PRIVATE GTest::gmock)

function(engine_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT" "SOURCES;LINK;LABELS;PLUGINS;ENVIRONMENT")
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE engine_flags engine::interfaces ${arg_LINK} GTest::gmock GTest::gtest_main)
  target_compile_options(${arg_NAME} PRIVATE ${test_options})
  engine_use_precompiled(${arg_NAME} test)
  target_include_directories(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${arg_NAME} PRIVATE
    ENGINE_TEST_PLUGIN_DIR="${ENGINE_PLUGIN_OUTPUT_DIR}"
    ENGINE_TEST_BINARY="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/engine"
    ENGINE_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  if(arg_PLUGINS)
    add_dependencies(${arg_NAME} ${arg_PLUGINS} engine_data_and_models)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
  if(arg_ENVIRONMENT)
    set_tests_properties(${arg_NAME} PROPERTIES ENVIRONMENT "${arg_ENVIRONMENT}")
  endif()
endfunction()
