# engine_add_library(<name> SOURCES ... LINK ... PRIVATE_LINK ...): one static library per folder, so that the layering of
# docs/architecture.md is also the layering of the linker.
function(engine_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;PRIVATE_LINK")
  add_library(engine_${name} STATIC ${arg_SOURCES})
  target_include_directories(engine_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(engine_${name} PUBLIC engine::interfaces ${arg_LINK} PRIVATE engine_flags ${arg_PRIVATE_LINK})
endfunction()
