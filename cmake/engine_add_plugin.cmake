# engine_add_plugin(NAME <name> SOURCES <file>... [LINK <target>...])
#
# One shared library libengine_<name>.so that exports the plugin descriptor and nothing else. Used by the
# plugins of this repository and, from the installed package, by those of others.

function(engine_add_plugin)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;LINK")
  if(NOT arg_NAME MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "engine_add_plugin: NAME '${arg_NAME}' must match [a-z][a-z0-9_]*")
  endif()
  set(ENGINE_ABI_MAJOR 0)
  configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map.in" "${CMAKE_CURRENT_BINARY_DIR}/plugin.map" @ONLY)
  set(target "engine_${arg_NAME}")
  add_library(${target} MODULE ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE engine::interfaces ${arg_LINK})
  set_target_properties(${target} PROPERTIES
    PREFIX "lib" OUTPUT_NAME "engine_${arg_NAME}"
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(ENGINE_PLUGIN_OUTPUT_DIR)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${ENGINE_PLUGIN_OUTPUT_DIR}")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique>)
  endif()
  target_link_options(${target} PRIVATE
    "-Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/plugin.map" -Wl,--exclude-libs,ALL)
  if(NOT CMAKE_CXX_FLAGS MATCHES "sanitize" AND NOT ENGINE_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${CMAKE_CURRENT_BINARY_DIR}/plugin.map")
  if(COMMAND engine_plugin_added)
    engine_plugin_added(${target})
  endif()
endfunction()
